-- leave_run_before: end a run before a job.
--   :queue :lane :rank :eligible_at :seq   :run the seq of the run
update th_ready set last = :seq - 1
where queue = :queue and lane = :lane and rank = :rank and eligible_at = :eligible_at and seq = :run
