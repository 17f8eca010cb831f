-- configure_queue: store the settings of a queue, or of the harbor under '*'. The caller has the locks of that name, and that of all settings.
create or replace function {schema}.configure_queue(
    p_queue text, p_settings json, p_paused boolean, p_max_running integer, p_enqueue_count integer, p_enqueue_us bigint,
    p_execute_count integer, p_execute_us bigint, p_fail_queue text, p_has_retention boolean, p_keep_completed bigint,
    p_keep_failed bigint, p_keep_cancelled bigint)
returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_is_counted boolean := exists (select from queue_settings r where r.queue = p_queue and r.max_running is not null);
    v_freed text[];  -- queues whose jobs no limit counts any more
begin
    if p_max_running is not null and not v_is_counted then
        lock table lease in share row exclusive mode;  -- claims that did not know of the limit are over
    end if;
    insert into queue_settings values (
        p_queue, p_settings, p_paused, p_max_running, p_enqueue_count, p_enqueue_us, p_execute_count, p_execute_us,
        p_fail_queue, p_has_retention, p_keep_completed, p_keep_failed, p_keep_cancelled)
    on conflict (queue) do update set
        settings = excluded.settings, paused = excluded.paused, max_running = excluded.max_running,
        enqueue_count = excluded.enqueue_count, enqueue_us = excluded.enqueue_us,
        execute_count = excluded.execute_count, execute_us = excluded.execute_us, fail_queue = excluded.fail_queue,
        has_retention = excluded.has_retention, keep_completed_us = excluded.keep_completed_us,
        keep_failed_us = excluded.keep_failed_us, keep_cancelled_us = excluded.keep_cancelled_us;
    if p_max_running is not null and not v_is_counted then
        insert into slot (queue, id, expires_at)
        select s.queue, s.id, s.ends_at
        from (select distinct u.id from lease h cross join unnest(h.ids) as u(id) where p_queue = '*' or h.queue = p_queue) i
        cross join lateral (select * from job_state k where k.id = i.id and k.state = 3 offset 0) s
        -- Another limit may count them already. Such a place is not waited for: who has it may wait for the table of leases.
        where not exists (select from slot k where k.queue = s.queue and k.id = s.id);
    elsif p_max_running is null and v_is_counted then
        v_freed := array(
            select distinct s.queue from slot s where not exists (
                select from queue_settings r where r.max_running is not null and r.queue in (s.queue, '*')));
        perform from (select k.id from slot k where k.queue = any (v_freed) order by k.id) t  -- in the order of locks: the jobs, then their places
        cross join lateral (select from job_state k where k.id = t.id for update offset 0) s;
        perform from slot k where k.queue = any (v_freed) order by k.id for update;
        delete from slot s where s.queue = any (v_freed);
    end if;
    -- A budget that is unset remembers nothing; a gate that may have opened wakes the workers that wait behind it.
    delete from rate_usage u where u.name = p_queue
    and (u.kind = 'enqueue' and p_enqueue_count is null or u.kind = 'execute' and p_execute_count is null);
    perform wake(case when p_queue = '*' then array(select q.queue from idle_queue q) else array[p_queue] end);
end $$;
