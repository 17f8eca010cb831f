-- look_seqs: what get_seqs gives, but neither payloads nor results: they may be large, and stay unread.
--   :seqs JSON array
--   returns what look returns, in the order of seqs
select b.seq, b.id, b.queue, b.type, b.requires, b.priority, b.created_at, b.run_at, b.traits, b.copy_of,
       x'', p.data,
       l.flags, l.bumps, l.fence, iif(l.updated_after = g.extensions, l.updated_at, g.updated_at), l.progress,
       g.no, g.token, g.worker, g.started_at, g.expires_at, g.extensions,
       o.state, o.finished_at, o.version, o.started_at, o.token, null
from th_body b
left join th_past p on p.seq = b.seq
left join th_lease l on l.seq = (select max(seq) from th_lease where seq <= b.seq) and l.last >= b.seq
left join th_grant g on g.no = l.grant_no
left join th_outcome o on o.seq = (select max(seq) from th_outcome where seq <= b.seq) and o.last >= b.seq
where b.seq in (select value from json_each(:seqs))
order by b.seq
