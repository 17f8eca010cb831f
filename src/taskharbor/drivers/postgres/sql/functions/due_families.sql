-- due_families: roots that have ended and whose retention is over, the oldest of each queue and state first.
create or replace function {schema}.due_families(p_now timestamptz, p_limit integer) returns setof text
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_queue text;
    v_state smallint;
    v_keep bigint;
begin
    select min(f.queue) into v_queue from family_end f;
    while v_queue is not null loop
        for v_state in 4 .. 6 loop
            v_keep := retention(v_queue, v_state);
            continue when v_keep is null;
            return query
            select f.id::text from family_end f
            where f.queue = v_queue and f.state = v_state and f.is_root and f.at <= after(v_now, -v_keep)
            order by f.at limit p_limit;
        end loop;
        select min(f.queue) into v_queue from family_end f where f.queue > v_queue;
    end loop;
end $$;
