-- What a store is, how it is, and how it wakes idle workers.

-- name: server
-- whether this server can be used: its version, is it a standby, is it read-only.
select current_setting('server_version_num')::integer, pg_is_in_recovery(),
       current_setting('default_transaction_read_only')::boolean

-- name: info
-- what time the server has, what it is, how durable, and the newest migration.
select clock_timestamp(), current_setting('server_version'), current_setting('fsync'),
       current_setting('synchronous_commit'), (select max(name) from {schema}.migration)

-- name: function_texts
-- the digest of each function, and the number of the set it came from.
select name, digest, set_number from {schema}.function_text

-- name: health
-- what a doctor asks about; names and values as text.
select 'connections', format('%s of %s', (select count(*) from pg_stat_activity where backend_type = 'client backend'),
                             current_setting('max_connections'))
union all
select 'oldest transaction', coalesce((
    select format('%s s, pid %s, %s, %s', round(extract(epoch from clock_timestamp() - xact_start)), pid,
                  coalesce(nullif(application_name, ''), usename, 'unknown'), state)
    from pg_stat_activity
    where xact_start is not null and pid <> pg_backend_pid() and backend_type = 'client backend'
    order by xact_start limit 1),
    case when pg_has_role('pg_read_all_stats', 'usage') then 'none' else 'none that this role may see; pg_monitor sees all' end)
union all
select 'dead rows', coalesce((
    select string_agg(format('%s of %s in %s', n_dead_tup, n_live_tup + n_dead_tup, relname), ', ' order by relname)
    from pg_stat_user_tables where schemaname = {schema_text} and relname in ('job', 'job_state', 'lease', 'waiting')), 'unknown')
union all
select 'last autovacuum', coalesce((
    select to_char(max(last_autovacuum) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
    from pg_stat_user_tables where schemaname = {schema_text} and relname in ('job', 'job_state', 'lease', 'waiting')), 'never')
union all
select 'autovacuum', current_setting('autovacuum')
union all
select 'notify queue', round((pg_notification_queue_usage() * 100)::numeric, 2) || ' %'
union all
select 'replication slots', case when count(*) = 0 then '0' else format(
    '%s, the laziest %s holds %s behind', count(*),
    (array_agg(slot_name order by age(xmin) desc nulls last, restart_lsn))[1],
    pg_size_pretty(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)))) end
from pg_replication_slots

-- name: watch
-- may this session listen for work?   $1 which work it waits for
select {schema}.watch($1::text)

-- name: unwatch
-- let another session listen for work.   $1 which work   $2 the place that was held
select {schema}.unwatch($1::text, $2::integer)

-- name: mark_idle
-- an idle worker listens to these queues.   $1 queues
insert into {schema}.idle_queue
select q from unnest($1::text[]) q where not exists (select from {schema}.idle_queue h where h.queue = q) order by q
on conflict do nothing

-- name: cancelled_of
-- running jobs of these workers that were cancelled, for workers that did not listen.   $1 workers
select s.id::text, s.worker
from (select distinct u.id from {schema}.lease h cross join unnest(h.ids) as u(id)) i
cross join lateral (
    select * from {schema}.job_state k where k.id = i.id and k.state = 3 and k.cancel_requested offset 0) s
where s.worker = any($1::text[])
