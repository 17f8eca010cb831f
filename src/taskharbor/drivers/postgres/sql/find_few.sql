-- find_few: the same for states that few jobs are in: blocked, running, failed, cancelled. They have an index.
--   arguments and answer as in find_walk
with recursive at as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
), names(name) as (
    select case when $2::text is null then (select min(queue) from {schema}.job) else $2::text end
    union all
    select (select min(j.queue) from {schema}.job j where j.queue > n.name) from names n
    where n.name is not null and $2::text is null
), examined as materialized (
    select e.* from names n
    cross join unnest($3::smallint[]) as s(state)
    cross join lateral (
        (select p.id, p.seq, null as worker from {schema}.place p
         where p.queue = n.name and p.state = s.state and (p.state = 2 or p.state >= 5) and p.seq {beyond} $4::bigint
         order by p.seq {order} limit $5::integer)
        union all
        (select p.id, p.seq, null as worker from {schema}.place p
         where s.state = 3 and p.queue = n.name and p.state = 3 and p.seq {beyond} $4::bigint
         order by p.seq {order} limit $5::integer)
        union all
        (select i.id, i.seq, h.worker from {schema}.held h cross join lateral unnest(h.ids, h.seqs) as i(id, seq)
         where s.state = 3 and h.queue = n.name and i.seq {beyond} $4::bigint
         order by i.seq {order} limit $5::integer)) e
    where n.name is not null
    order by e.seq {order} limit $5::integer
), picked as (
    select e.id, e.seq
    from examined e
    cross join lateral (select k.type, k.speculates_on from {schema}.job k where k.id = e.id offset 0) j
    left join lateral (
        select q.state, q.key, q.claimed_by, q.failure_kind from {schema}.place q where q.id = e.id offset 0) p on true
    where coalesce(p.state, 3) = any($3::smallint[]) and j.speculates_on is null
      and ($6::text is null or j.type = $6::text) and ($7::bytea is null or p.key = $7::bytea)
      and ($8::text is null or coalesce(p.claimed_by, e.worker) = $8::text)
      and ($9::text is null or p.failure_kind = $9::text)
      and ($10::smallint[] is null or coalesce(p.state, 3) = any($10::smallint[]))
    order by e.seq {order} limit $11::integer
)
select {columns}, r.reached, at.now
from at
cross join (select case when count(*) = $5::integer then {last}(seq) end as reached from examined) r
left join picked x on true
left join lateral (select k as whole, k.* from {schema}.job k where k.id = x.id offset 0) j on true
left join lateral {schema}.stands(j.whole) p on j.id is not null
order by x.seq {order}
