-- leave_grant_empty: forget a grant that no lease points to any more.
--   :no   :most leases that it may still count, because they are gone
delete from th_grant where no = :no and held <= :most
