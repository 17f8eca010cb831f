-- leave_outcome: a job that is over lives again, or goes.
--   :seq
delete from th_outcome where seq = :seq
