-- health: what a doctor asks about; names and values as text.
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
    from pg_stat_user_tables where schemaname = {schema_text} and relname in ('ready', 'held', 'place', 'job')), 'unknown')
union all
select 'last autovacuum', coalesce((
    select to_char(max(last_autovacuum) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
    from pg_stat_user_tables where schemaname = {schema_text} and relname in ('ready', 'held', 'place', 'job')), 'never')
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
