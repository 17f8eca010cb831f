-- promote_count: how many listed jobs move, by block. Copies (flag 8) are not listed.
--   :queue   :run_at :seq the last one that may move
--   returns (block, count)
select seq >> 10, sum(flags & 8 = 0) from th_later
where queue = :queue and (run_at, seq) <= (:run_at, :seq)
group by 1
