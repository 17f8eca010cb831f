-- reserve_pick_rows: as reserve_pick, from rows that were looked up before.
--   :queue :lane :limit   :rows JSON array of [rank, eligible_at, seq]
select json_group_array(json_array(seq, id, type, length(payload), flags, rank, eligible_at, created_at, traits)),
       cast(group_concat(payload, '') as blob), max(id is null), sum(named)
from (
  select b.seq, b.id, r.type, b.payload, r.flags, r.rank, r.eligible_at,
         iif(r.timed, b.created_at, null) as created_at, b.traits,
         iif(b.seq = r.seq, r.last - r.seq + 1, 0) as named
  from json_each(:rows) x
  cross join th_ready r on r.queue = :queue and r.lane = :lane and r.rank = x.value ->> 0
    and r.eligible_at = x.value ->> 1 and r.seq = x.value ->> 2
  left join th_body b on b.seq between r.seq and r.last
  order by r.rank, r.eligible_at, r.seq, b.seq
  limit :limit
)
