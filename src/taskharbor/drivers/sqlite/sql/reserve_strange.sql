-- reserve_strange: whether a job of another type stands among the first rows of one queue and lane.
--   :queue :lane :limit   :types JSON array
--   returns one row: 1 if so
select exists (
  select 1 from (select type from th_ready where queue = :queue and lane = :lane order by rank, eligible_at, seq limit :limit)
  where type not in (select value from json_each(:types)))
