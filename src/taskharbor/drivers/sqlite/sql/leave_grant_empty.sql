-- leave_grant_empty: forget a grant that no lease points to any more.
--   :no
delete from th_grant where no = :no and held <= 0
