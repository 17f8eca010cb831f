-- wake: notify listeners that jobs became ready. Without p_always only of queues that a session waits for, and of each
-- once: the session that wakes removes the mark.
create or replace function {schema}.wake(p_queues text[], p_always boolean default false) returns void
language plpgsql set search_path = {schema}, pg_temp as $$
declare
    v_queue text;
begin
    if p_always then
        perform pg_notify('taskharbor:' || current_schema(), 'work ' || s.queue)
        from (select distinct unnest(p_queues) as queue) s;
    elsif exists (select from idle_queue h where h.queue = any (p_queues)) then
        for v_queue in
            delete from idle_queue where ctid = any (array(
                select h.ctid from idle_queue h where h.queue = any (p_queues) for update skip locked))
            returning queue
        loop
            perform pg_notify('taskharbor:' || current_schema(), 'work ' || v_queue);
        end loop;
    end if;
end $$;
