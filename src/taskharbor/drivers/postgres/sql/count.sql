-- count: how many jobs stand where, as they read.   $1 now   $2 queues or null
--   queue, state, count, since when the oldest ready one could run
select p.queue, s.name, count(*)::integer, min(p.eligible_at)
from (select coalesce($1::timestamptz, clock_timestamp()) as now) at
cross join {schema}.place p
cross join lateral (select case p.state when 2 then 'blocked' when 3 then 'running' when 4 then 'completed'
    when 5 then 'failed' when 6 then 'cancelled' else case when p.run_at > at.now then 'scheduled' else 'ready' end
    end as name) s
where p.ties & 4 = 0 and ($2::text[] is null or p.queue = any($2::text[]))
group by p.queue, s.name
