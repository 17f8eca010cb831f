-- health: what a doctor asks about; names and values as text.
select 'connections', format('%s of %s', (select count(*) from pg_stat_activity where backend_type = 'client backend'),
                             current_setting('max_connections'))
union all
select 'oldest transaction', coalesce((
    select format('%s s, pid %s, %s, %s', round(extract(epoch from clock_timestamp() - xact_start)), pid,
                  coalesce(nullif(application_name, ''), usename, 'unknown'), state)
    from pg_stat_activity
    where xact_start is not null and pid <> pg_backend_pid() and backend_type = 'client backend'
    order by xact_start limit 1), 'none')
union all
select 'dead rows', coalesce((
    select format('%s of %s in place', n_dead_tup, n_live_tup + n_dead_tup)
    from pg_stat_user_tables where schemaname = {schema_text} and relname = 'place'), 'unknown')
union all
select 'last autovacuum', coalesce((
    select to_char(last_autovacuum at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
    from pg_stat_user_tables where schemaname = {schema_text} and relname = 'place'), 'never')
union all
select 'autovacuum', current_setting('autovacuum')
union all
select 'notify queue', round((pg_notification_queue_usage() * 100)::numeric, 2) || ' %'
union all
select 'replication slots', count(*)::text from pg_replication_slots
