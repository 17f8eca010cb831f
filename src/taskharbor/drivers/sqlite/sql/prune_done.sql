-- prune_done: forget an end that was dealt with.
--   :no
delete from th_ended where no = :no
