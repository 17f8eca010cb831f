-- name: get
-- whole records by id; an alias gives the job it leads to.   $1 ids  $2 now
--   each row ends with the notes, the place of the id in the question and the deciding instant
select {columns}, {notes}, i.ord::integer, t.at
from (select coalesce($2::timestamptz, clock_timestamp()) as at) t
cross join unnest($1::text[]) with ordinality as i(id, ord)
left join lateral (select b.target from {schema}.alias b where b.id = i.id::uuid offset 0) a on true
cross join lateral (select * from {schema}.job k where k.id = coalesce(a.target, i.id::uuid) offset 0) j
cross join lateral (select * from {schema}.job_state k where k.id = j.id offset 0) s
left join lateral (select * from {schema}.job_history k where k.id = j.id offset 0) h on true
left join lateral (select * from {schema}.family k where k.id = j.id and s.link_flags & 32 <> 0 offset 0) f on true

-- name: find_children
-- the children of a job, as `find_walk` finds jobs.   $12 the parent
{queues_in_job}, examined as materialized (
    select e.*, null::timestamptz as ended from (
        select k.id, k.seq, k.type, k.speculates_on, k.ctid as job_at from {schema}.job k
        where k.parent = $12::text::uuid and k.seq {beyond} $4::bigint and ($2::text is null or k.queue = $2::text)
        order by k.seq {order} limit $5::integer) e
)
{page}

-- name: find_walk
-- the next jobs in enqueue order, looking at so many at most. Their states are as `shown` in model/transitions.py has them.
--   $1 now  $2 queue or null  $3 states: 0 scheduled, 1 ready, 2 blocked …  $4 behind this seq  $5 how many to look at
--   $6 type  $7 key  $8 worker  $9 failure_kind  $10 how many to return  $11 ended after
--   each row ends with the end and the seq that the look reached (null: it saw all), how many it saw, and the instant; no job: one empty row
{queues_in_job}, examined as materialized (
    select e.* from names n
    cross join lateral (
        select j.id, j.seq, j.type, j.speculates_on, j.ctid as job_at, null::timestamptz as ended from {schema}.job j
        where j.queue = n.name and j.seq {beyond} $4::bigint
        order by j.seq {order} limit $5::integer) e
    where n.name is not null
    order by e.seq {order} limit $5::integer
)
{page}

-- name: find_few
-- the same for states that few jobs are in, which have an index or a small table: blocked, running, failed, cancelled
{queues_in_job}, chosen as materialized (
    select n.name as queue, e.seq, null::timestamptz as ended from names n
    cross join unnest($3::smallint[]) as a(state)
    cross join lateral (
        (select k.next_seq as seq from {schema}.job_key k
         where a.state = 2 and k.queue = n.name and k.next is not null and k.next_seq {beyond} $4::bigint
         order by k.next_seq {order} limit $5::integer)
        union all
        (select f.seq from {schema}.family f
         where a.state = 2 and f.queue = n.name and f.is_blocked and f.seq {beyond} $4::bigint
         order by f.seq {order} limit $5::integer)
        union all
        (select f.seq from {schema}.family_end f
         where f.queue = n.name and f.state = a.state and f.seq {beyond} $4::bigint
         order by f.seq {order} limit $5::integer)
        union all
        (select s.seq
         from (select distinct u.id from {schema}.lease h cross join unnest(h.ids) as u(id) where h.queue = n.name) i
         cross join lateral (select k.seq from {schema}.job_state k where k.id = i.id and k.state = 3 offset 0) s
         where a.state = 3 and s.seq {beyond} $4::bigint order by s.seq {order} limit $5::integer)
        union all
        (select f.seq from {schema}.finished f
         where f.queue = n.name and f.state = a.state and f.seq is not null and f.seq {beyond} $4::bigint
         order by f.seq {order} limit $5::integer)) e
    where n.name is not null
    order by e.seq {order} limit $5::integer
)
{found}{page}

-- name: find_waiting
-- the same for scheduled and ready jobs of one queue, however many have ended before them. The index of `waiting` has
-- them in another order, so all of that queue are looked at in it: a tenth of a second for a million.
{queues_in_job}, examined as materialized (
    select j.id, w.seq, j.type, j.speculates_on, j.ctid as job_at, null::timestamptz as ended
    from (select k.seq from {schema}.waiting k where k.queue = $2::text and k.seq {beyond} $4::bigint
          order by k.seq {order} limit $5::integer) w
    cross join lateral (
        select k.*, k.ctid from {schema}.job k where k.queue = $2::text and k.seq = w.seq offset 0) j
)
{page}

-- name: find_ended
-- the same by end, for states in which jobs have ended: behind the end $12 and the seq $4.
{queues_in_finished}, chosen as materialized (
    select n.name as queue, e.seq, e.ended from names n
    cross join unnest($3::smallint[]) as a(state)
    cross join lateral (
        (select s.seq, f.at as ended from {schema}.finished f
        cross join unnest(f.ids) as u(id)
        cross join lateral (
            select k.seq from {schema}.job_state k
            where k.id = u.id and k.state = f.state and k.ends_at = f.at and k.link_flags & 4 = 0 offset 0) s
        where f.queue = n.name and f.state = a.state and f.at {upto} $12::timestamptz
          and ($11::timestamptz is null or f.at > $11::timestamptz)
          and (f.at {beyond} $12::timestamptz or s.seq {beyond} $4::bigint)
        order by f.at {order}, s.seq {order} limit $5::integer)
        union all
        (select s.seq, f.at as ended from {schema}.child_end f
        cross join unnest(f.ids) as u(id)
        cross join lateral (
            select k.seq from {schema}.job_state k where k.id = u.id and k.state = 4 and k.ends_at = f.at offset 0) s
        where f.queue = n.name and a.state = 4 and f.at {upto} $12::timestamptz
          and ($11::timestamptz is null or f.at > $11::timestamptz)
          and (f.at {beyond} $12::timestamptz or s.seq {beyond} $4::bigint)
        order by f.at {order}, s.seq {order} limit $5::integer)
        union all
        (select f.seq, f.at as ended from {schema}.family_end f
        where f.queue = n.name and f.state = a.state and f.at {upto} $12::timestamptz
          and ($11::timestamptz is null or f.at > $11::timestamptz)
          and (f.at {beyond} $12::timestamptz or f.seq {beyond} $4::bigint)
        order by f.at {order}, f.seq {order} limit $5::integer)) e
    where n.name is not null
    order by e.ended {order}, e.seq {order} limit $5::integer
)
{found}{page}

-- name: count
-- how many jobs are in each state: `shown` in model/transitions.py.   $1 now  $2 queues or null
--   queue, state, count, since when the oldest ready one could run
--   Those that wait or have ended are in the tallies. A slice that `now` lies in is looked at in the index of jobs with a time.
with at as materialized (
    select coalesce($1::timestamptz, clock_timestamp()) as now
), tallied as materialized (
    select t.queue, t.state, t.lane, t.rank,
           sum(t.count) filter (where t.slice <= at.now) as due, sum(t.count) filter (where t.slice > at.now) as later,
           max(t.slice) filter (where t.slice > at.now and t.slice < at.now + interval '5 min') as slice
    from at cross join (
        select k.queue, k.state, k.lane, k.rank, k.slice, k.count from {schema}.tally k
        union all
        select k.queue, k.state, k.lane, k.rank, k.slice, k.change from {schema}.tally_change k) t
    where $2::text[] is null or t.queue = any($2::text[]) group by 1, 2, 3, 4
), line as materialized (
    select t.queue, sum(t.due) as due, sum(t.later) as later, max(t.slice) as slice, min(first.at) as oldest
    from at cross join tallied t
    left join lateral (select coalesce(
        (select w.eligible_at from {schema}.waiting w
         where w.queue = t.queue and w.lane = t.lane and w.rank = t.rank and w.eligible_at <= at.now and not w.is_copy
         order by w.eligible_at limit 1),
        (select w.eligible_at from {schema}.waiting w  -- a clock went back behind an enqueue
         where w.queue = t.queue and w.lane = t.lane and w.rank = t.rank and not w.is_timed and not w.is_copy
           and t.due > 0
         order by w.eligible_at limit 1)) as at) first on t.due > 0 or t.slice is not null
    where t.state = 0 group by 1
), counted(queue, state, count, oldest) as (
    select l.queue, a.state, a.count, a.oldest
    from at cross join line l
    cross join lateral (
        select count(*) as count from {schema}.waiting w
        where w.queue = l.queue and w.is_timed and not w.is_copy
          and w.eligible_at > l.slice - interval '5 min' and w.eligible_at <= at.now) near
    cross join lateral (values ('ready', coalesce(l.due, 0) + near.count, l.oldest),
                               ('scheduled', coalesce(l.later, 0) - near.count, null)) as a(state, count, oldest)
    union all
    select t.queue, (array['completed', 'failed', 'cancelled'])[t.state - 3], t.due, null from tallied t where t.state > 0
    union all
    select k.queue, 'blocked', count(*), null from {schema}.job_key k
    where k.next is not null and ($2::text[] is null or k.queue = any($2::text[])) group by 1
    union all
    select f.queue, 'blocked', count(*), null from {schema}.family f
    where f.is_blocked and ($2::text[] is null or f.queue = any($2::text[])) group by 1
    union all
    select s.queue, 'running', count(*), null
    from (select distinct u.id from {schema}.lease h cross join unnest(h.ids) as u(id)
          where $2::text[] is null or h.queue = any($2::text[])) i
    cross join lateral (select k.queue, k.link_flags from {schema}.job_state k where k.id = i.id and k.state = 3 offset 0) s
    where s.link_flags & 4 = 0 group by 1
)
select c.queue, c.state, sum(c.count)::integer, min(c.oldest) from counted c group by c.queue, c.state having sum(c.count) > 0

-- name: rate_usage
-- what was spent of execute rates, oldest first, and the deciding instant.   $1 now
select name, at, count, coalesce($1::timestamptz, clock_timestamp()) from {schema}.rate_usage
where kind = 'execute' order by at
