-- reserve_run: the first jobs of the run that heads the line of one queue and lane, if it is long enough and none of
-- them needs a closer look.
-- Changes nothing. The ids and payloads are those of ascending seqs, as the key of th_body gives them.
--   :queue :lane :limit   :types JSON array or null
--   returns one row (first seq and last of the run, type, rank, eligible_at, how many jobs, traits, 1 if they share
--   them, their ids with commas, the sizes of their payloads with commas, the payloads end to end); no job when there is
--   no such run
select r.seq, r.last, r.type, r.rank, r.eligible_at, count(*),
       max(b.traits), (count(b.traits) = 0 or (count(b.traits) = count(*) and min(b.traits) = max(b.traits))),
       group_concat(b.id), group_concat(length(b.payload)), cast(group_concat(b.payload, '') as blob)
from (
  select seq, last, type, rank, eligible_at, timed, flags, avoid
  from th_ready where queue = :queue and lane = :lane
  order by rank, eligible_at, seq limit 1
) r
cross join th_body b on b.seq between r.seq and min(r.last, r.seq + :limit - 1)
where r.last - r.seq + 1 >= :limit and r.timed = 0 and r.flags = 0 and r.avoid is null
  and (:types is null or r.type in (select value from json_each(:types)))
