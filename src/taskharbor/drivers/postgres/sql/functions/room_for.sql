-- room_for: how many jobs the settings of one level, a queue or the harbor, let out now, when p_wanted are wanted. The caller
-- has its gate. As `Gates.room` in drivers/memory/gates.py.
create or replace function {schema}.room_for(p_level text, p_now timestamptz, p_wanted integer) returns integer
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_rule queue_settings;
    v_room integer := 1000000;
begin
    select * into v_rule from queue_settings r where r.queue = p_level;
    if not found then
        return v_room;
    end if;
    if v_rule.paused then
        return 0;
    end if;
    if v_rule.max_running is not null then
        -- Every running job has a hint. While there are few of them, no count is needed.
        v_room := v_rule.max_running - case when p_level = '*'
            then (select coalesce(sum(cardinality(h.ids)), 0) from lease h)
            else (select coalesce(sum(cardinality(h.ids)), 0) from lease h where h.queue = p_level) end;
    end if;
    if v_rule.max_running is not null and v_room < p_wanted then
        -- A lease that has run out does not count. It is locked until the end of this step, so that no heartbeat revives it. One
        -- that another session has locked counts: it may be under extension at this moment, by a clock that was read before ours.
        v_room := v_rule.max_running + (
            select count(*)::integer from (
                select from slot s where (p_level = '*' or s.queue = p_level) and s.expires_at <= p_now
                for update skip locked) e) - (
            select count(*)::integer from slot s where p_level = '*' or s.queue = p_level);
    end if;
    if v_rule.execute_count is not null then
        v_room := least(v_room, budget_room('execute', p_level, v_rule.execute_count, v_rule.execute_us, p_now));
    end if;
    return greatest(v_room, 0);
end $$;
