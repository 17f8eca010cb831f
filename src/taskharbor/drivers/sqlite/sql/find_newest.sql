-- find_newest: the seqs of one block that fit a listing, newest first. Copies are never listed.
--   :low :high bounds of seq, both part of it   :queue :type or null   :states JSON array of names, or null
--   :worker_id :failure_kind or null   :key base64 or null   :now   :limit
--   returns seq
select b.seq
from th_body b
left join th_past p on p.seq = b.seq
left join th_lease l on l.seq = (select max(seq) from th_lease where seq <= b.seq) and l.last >= b.seq
left join th_grant g on g.no = l.grant_no
left join th_outcome o on o.seq = (select max(seq) from th_outcome where seq <= b.seq) and o.last >= b.seq
where b.seq between :low and :high
  and b.copy_of is null
  and (:queue is null or b.queue = :queue)
  and (:type is null or b.type = :type)
  and (:worker_id is null or g.worker = :worker_id)
  and (:failure_kind is null or p.failure_kind = :failure_kind)
  and (:key is null or json_extract(b.traits, '$.key') = :key)
  and (:states is null or case
         when o.seq is not null then o.state
         when l.seq is not null then 'running'
         when p.blocked = 1 then 'blocked'
         when coalesce(iif(p.seq is null, b.run_at, p.run_at), 0) > :now then 'scheduled'
         else 'ready'
       end in (select value from json_each(:states)))
order by b.seq desc
limit :limit
