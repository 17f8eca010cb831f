-- leave_run_behind: let what stands behind a job in its run stand for itself.
--   :queue :lane :rank :eligible_at :seq   :run the seq of the run
insert into th_ready (queue, lane, rank, eligible_at, seq, last, timed, flags, type, avoid)
select queue, lane, rank, eligible_at, :seq + 1, last, timed, flags, type, avoid from th_ready
where queue = :queue and lane = :lane and rank = :rank and eligible_at = :eligible_at and seq = :run
  and last > :seq
