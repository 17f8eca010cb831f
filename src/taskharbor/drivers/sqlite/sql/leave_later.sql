-- leave_later: take one job out of those that wait for their time.
--   :queue :run_at :seq
delete from th_later where queue = :queue and run_at = :run_at and seq = :seq
