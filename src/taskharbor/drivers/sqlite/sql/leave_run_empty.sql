-- leave_run_empty: forget a run without jobs.
--   :queue :lane :rank :eligible_at   :run the seq of the run
delete from th_ready
where queue = :queue and lane = :lane and rank = :rank and eligible_at = :eligible_at and seq = :run
  and last < seq
