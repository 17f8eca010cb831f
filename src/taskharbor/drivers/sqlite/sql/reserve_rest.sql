-- reserve_rest: what is left of the run that the last job of a pick stands in begins behind that job.
--   :queue :lane   :rank :eligible_at :seq of the last job
update th_ready set seq = :seq + 1
where queue = :queue and lane = :lane and rank = :rank and eligible_at = :eligible_at
  and seq <= :seq and last > :seq
