-- count: how many jobs stand where, as they read.   $1 now   $2 queues or null
--   queue, state, count, since when the oldest ready one could run
with at as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
), counted(queue, state, count, oldest) as (
    select r.queue, case when r.is_timed and r.eligible_at > at.now then 'scheduled' else 'ready' end,
           count(*), min(r.eligible_at)
    from at cross join {schema}.ready r
    where r.ties & 4 = 0 and ($2::text[] is null or r.queue = any($2::text[])) group by 1, 2
    union all
    select p.queue, case when p.run_at > at.now then 'scheduled' else 'ready' end, count(*), min(p.run_at)
    from at cross join {schema}.place p
    where p.state = 0 and p.ties & 4 = 0 and ($2::text[] is null or p.queue = any($2::text[])) group by 1, 2
    union all
    select p.queue, (array['blocked', 'running', 'completed', 'failed', 'cancelled'])[p.state - 1], count(*), null
    from {schema}.place p
    where p.state >= 2 and p.ties & 4 = 0 and ($2::text[] is null or p.queue = any($2::text[])) group by 1, p.state
    union all
    select h.queue, 'running', sum(cardinality(h.ids)), null
    from {schema}.held h where $2::text[] is null or h.queue = any($2::text[]) group by 1
    union all
    select d.queue, 'completed', sum(cardinality(d.seqs)), null
    from {schema}.done d where $2::text[] is null or d.queue = any($2::text[]) group by 1
)
select c.queue, c.state, sum(c.count)::integer, min(c.oldest) from counted c group by c.queue, c.state
