-- find_walk: the next jobs in enqueue order, looking at so many at most.
--   $1 now  $2 queue or null  $3 stored states  $4 behind this seq  $5 how many to look at
--   $6 type  $7 key  $8 claimed_by  $9 failure_kind  $10 states as they read, or null  $11 how many to give
--   each row ends with the seq that the look reached (null: it saw all) and the instant; no job: one empty row
with recursive at as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
), names(name) as (
    select case when $2::text is null then (select min(queue) from {schema}.job) else $2::text end
    union all
    select (select min(j.queue) from {schema}.job j where j.queue > n.name) from names n
    where n.name is not null and $2::text is null
), examined as materialized (
    select e.* from names n
    cross join lateral (
        select j.id, j.seq, j.queue, j.type, j.run_at, j.speculates_on from {schema}.job j
        where j.queue = n.name and j.seq {beyond} $4::bigint
        order by j.seq {order} limit $5::integer) e
    where n.name is not null
    order by e.seq {order} limit $5::integer
), completed as materialized (
    select s.seq from (select distinct e.queue, e.seq >> 10 as block from examined e) b
    cross join lateral (select d.seqs from {schema}.done d where d.queue = b.queue and d.block = b.block offset 0) d
    cross join lateral unnest(d.seqs) as s(seq)
), running as materialized (
    select s.seq, h.worker from {schema}.held h cross join lateral unnest(h.seqs) as s(seq)
), picked as (
    select e.id, e.seq
    from examined e
    left join lateral (
        select q.state, q.run_at, q.key, q.claimed_by, q.failure_kind from {schema}.place q where q.id = e.id offset 0
        ) p on true
    left join completed c on c.seq = e.seq
    left join running h on h.seq = e.seq
    cross join lateral (select coalesce(
        p.state, case when c.seq is not null then 4 when h.seq is not null then 3 else 1 end) as state) s
    where s.state = any($3::smallint[]) and e.speculates_on is null
      and ($6::text is null or e.type = $6::text) and ($7::bytea is null or p.key = $7::bytea)
      and ($8::text is null or coalesce(p.claimed_by, h.worker) = $8::text)
      and ($9::text is null or p.failure_kind = $9::text)
      and ($10::smallint[] is null or case when s.state > 1 then s.state
           when case when p.state is null then e.run_at else p.run_at end > (select now from at) then 0 else 1 end
           = any($10::smallint[]))
    order by e.seq {order} limit $11::integer
)
select {columns}, r.reached, at.now
from at
cross join (select case when count(*) = $5::integer then {last}(seq) end as reached from examined) r
left join picked x on true
left join lateral (select k as whole, k.* from {schema}.job k where k.id = x.id offset 0) j on true
left join lateral {schema}.stands(j.whole) p on j.id is not null
order by x.seq {order}
