-- How long a queue keeps jobs that ended in a state, in microseconds; null for ever. `retention_of` in model/queue.py.
create or replace function {schema}.retention(p_queue text, p_state integer) returns bigint
language plpgsql stable set search_path = {schema}, pg_temp as $$
declare
    v_rule record;
begin
    select * into v_rule from queue_settings r where r.has_retention and r.queue in (p_queue, '*')
    order by r.queue = '*' limit 1;
    if not found then
        return case p_state when 4 then 3600000000 else 1209600000000 end;
    end if;
    return case p_state when 4 then v_rule.keep_completed_us when 5 then v_rule.keep_failed_us
           else v_rule.keep_cancelled_us end;
end $$;
