-- lease_row: the row of leases at or before a job, with its grant. Whoever calls looks whether it reaches as far.
--   :seq
--   returns (seq, last, flags, bumps, fence, version of the past, grant no, queue, token, worker, started_at, expires_at,
--   extensions, held), or no row
select l.seq, l.last, l.flags, l.bumps, l.fence, p.version,
       g.no, g.queue, g.token, g.worker, g.started_at, g.expires_at, g.extensions, g.held
from (select * from th_lease where seq <= :seq order by seq desc limit 1) l
cross join th_grant g on g.no = l.grant_no
left join th_past p on p.seq = l.seq
