-- promote_count: how many jobs move, by block, and how many of them are listed: copies are not.
--   :queue   :run_at :seq the last one that may move
--   returns (block, count, listed)
select seq >> 10, count(*), sum(flags & 8 = 0) from th_later
where queue = :queue and (run_at, seq) <= (:run_at, :seq)
group by 1
