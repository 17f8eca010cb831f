-- leave_run: the run that a job stands in.
--   :queue :lane :rank :eligible_at :seq
--   returns (seq, last) of the run, or no row
select seq, last from (
  select seq, last from th_ready
  where queue = :queue and lane = :lane and rank = :rank and eligible_at = :eligible_at and seq <= :seq
  order by seq desc limit 1
) where last >= :seq
