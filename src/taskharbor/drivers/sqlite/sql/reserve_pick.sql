-- reserve_pick: the next jobs of one queue and lane, in the order of claims. Changes nothing yet. One row for all of
-- them, because each row more is one more moment in which another thread can take the interpreter.
--   :queue :lane :limit :now   :worker who asks   :types JSON array or null
--   returns one row: JSON array of [seq, id, type, bytes of payload, flags, rank, eligible_at,
--   created_at if eligible_at is a run_at, traits], the payloads end to end, 1 if a job has no body, how many jobs the
--   rows name that were looked at
select json_group_array(json_array(seq, id, type, length(payload), flags, rank, eligible_at, created_at, traits)),
       cast(group_concat(payload, '') as blob), max(id is null), sum(named)
from (
  select b.seq, b.id, r.type, b.payload, r.flags, r.rank, r.eligible_at,
         iif(r.timed, b.created_at, null) as created_at, b.traits,
         iif(b.seq = r.seq, r.last - r.seq + 1, 0) as named
  from th_ready r left join th_body b on b.seq between r.seq and r.last
  where r.queue = :queue and r.lane = :lane
    and (r.timed = 0 or r.eligible_at <= :now)
    and (r.avoid is null or (  -- a copy: not for whom its first line names, nor yet for the others it names;
      instr(r.avoid || char(10), :worker || char(10)) <> 1
      and (instr(r.avoid, char(10) || :worker || char(10)) = 0
           or cast(substr(r.avoid, instr(r.avoid, char(10)) + 1) as integer) <= :now)
      and exists (  -- and its original runs, and not there
        select 1 from th_body c join th_body o on o.id = c.copy_of join th_lease l on l.seq = o.seq
          join th_grant g on g.no = l.grant_no
        where c.seq = r.seq and g.worker <> :worker)))
    and (:types is null or r.type in (select value from json_each(:types)))
  order by r.rank, r.eligible_at, r.seq, b.seq
  limit :limit
)
