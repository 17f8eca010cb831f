-- leave_lease: end one lease.
--   :seq
delete from th_lease where seq = :seq
