-- lease_rows: the rows of leases that some jobs stand in, each with its grant. One row for all, because each row more
-- is one more moment in which another thread can take the interpreter.
--   :runs JSON array of [first seq, last seq]
--   returns JSON array of [seq, last, flags, bumps, fence, version of the past, grant no, queue, token, worker,
--   started_at, expires_at, extensions, held], ascending
select json_group_array(json_array(l.seq, l.last, l.flags, l.bumps, l.fence, p.version,
         g.no, g.queue, g.token, g.worker, g.started_at, g.expires_at, g.extensions, g.held))
from json_each(:runs) j
cross join th_lease l on l.seq between
    coalesce((select max(seq) from th_lease where seq <= j.value ->> 0), 0) and j.value ->> 1
cross join th_grant g on g.no = l.grant_no
left join th_past p on p.seq = l.seq
where l.last >= j.value ->> 0
