-- Everything that a store keeps besides jobs.

-- name: settings
-- the stored settings of a queue.   $1 queue
select settings::text from {schema}.queue_settings where queue = $1::text

-- name: all_settings
-- the settings of every queue.
select queue, settings::text from {schema}.queue_settings

-- name: configure_queue
select {schema}.configure_queue($1, $2::text::json, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)

-- name: worker
-- what is known of a worker whose report has not lapsed; one row.   $1 worker   $2 now
--   latency, samples, the deciding instant
select w.latency_us, coalesce(w.samples, 0), at.now
from (select coalesce($2::timestamptz, clock_timestamp()) as now) at
left join {schema}.worker w on w.worker_id = $1::text and w.expires_at > at.now

-- name: report_worker
-- a worker lives.   $1 id  $2 report  $3 seen at  $4 expires at  $5 latency  $6 samples
insert into {schema}.worker values ($1, $2::text::json, $3, $4, $5, $6)
on conflict (worker_id) do update set
    report = excluded.report, seen_at = excluded.seen_at, expires_at = excluded.expires_at,
    latency_us = excluded.latency_us, samples = excluded.samples

-- name: workers
-- the reports that have not lapsed.   $1 now
select report::text, seen_at, expires_at, latency_us, samples from {schema}.worker
where expires_at > coalesce($1::timestamptz, clock_timestamp())

-- name: forget_worker
-- drop a report; had it not lapsed?   $1 worker   $2 now
delete from {schema}.worker where worker_id = $1::text
returning expires_at > coalesce($2::timestamptz, clock_timestamp())

-- name: types
-- how long jobs of each type usually take.
select type, usual_us, samples from {schema}.type order by type collate "C"

-- name: learn_type
-- a folded duration.   $1 type  $2 usual  $3 samples
insert into {schema}.type values ($1, $2, $3)
on conflict (type) do update set usual_us = excluded.usual_us, samples = excluded.samples

-- name: hold_role
-- take or keep a role, or learn who has it; one row.   $1 role  $2 holder  $3 ttl in µs  $4 now
-- The same as `role_after` in model/presence.py.
with at as materialized (
    select coalesce($4::timestamptz, clock_timestamp()) as now
), taken as (
    insert into {schema}.role as r
    select $1::text, $2::text, 1, {schema}.after(at.now, $3::bigint) from at
    on conflict (role) do update set
        holder = excluded.holder,
        expires_at = excluded.expires_at,
        -- The same term while one holder keeps it without a gap.
        term = r.term + case when r.expires_at > (select now from at) then 0 else 1 end
    where r.holder = excluded.holder or r.expires_at <= (select now from at)
    returning holder, term, expires_at, true as is_mine
)
select * from taken
union all
select r.holder, r.term, r.expires_at, false from {schema}.role r
where r.role = $1::text and not exists (select from taken)

-- name: release_role
-- give a role up; its term stays known: `role_released` in model/presence.py.   $1 role  $2 holder  $3 now
update {schema}.role set expires_at = coalesce($3::timestamptz, clock_timestamp())
where role = $1::text and holder = $2::text and expires_at > coalesce($3::timestamptz, clock_timestamp())
returning role

-- name: schedule
-- the deciding instant, and a schedule or nulls.   $1 name   $2 now
select at.now, s.schedule::text, s.paused, s.last_tick_at, s.created_at, s.updated_at, s.fired_at, s.declared_at
from (select coalesce($2::timestamptz, clock_timestamp()) as now) at
left join {schema}.schedule s on s.name = $1::text

-- name: put_schedule
-- store a schedule under its name.
insert into {schema}.schedule values ($1, $2::text::json, $3, $4, $5, $6, $7, $8)
on conflict (name) do update set
    schedule = excluded.schedule, paused = excluded.paused, last_tick_at = excluded.last_tick_at,
    updated_at = excluded.updated_at, declared_at = excluded.declared_at

-- name: advance_schedule
-- ticks up to here were dealt with; never goes back.   $1 name  $2 tick  $3 now  $4 fired
-- The same as `advanced` in model/schedule.py.
update {schema}.schedule set
    updated_at = case when $2::timestamptz > last_tick_at then coalesce($3::timestamptz, clock_timestamp()) else updated_at end,
    fired_at = case when $2::timestamptz > last_tick_at and $4::boolean then $2::timestamptz else fired_at end,
    last_tick_at = greatest(last_tick_at, $2::timestamptz)
where name = $1::text returning name

-- name: delete_schedule
-- forget a schedule.   $1 name
delete from {schema}.schedule where name = $1::text returning name

-- name: schedules
-- every schedule, by name.
select schedule::text, paused, last_tick_at, created_at, updated_at, fired_at, declared_at
from {schema}.schedule order by name collate "C"

