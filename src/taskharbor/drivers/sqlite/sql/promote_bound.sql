-- promote_bound: how far a promotion goes: the last of the first due jobs of one queue.
--   :queue :now :limit
--   returns (run_at, seq), or no row when nothing is due
select run_at, seq from (
  select run_at, seq from th_later
  where queue = :queue and run_at <= :now
  order by run_at, seq limit :limit
) order by run_at desc, seq desc limit 1
