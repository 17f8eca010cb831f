-- leave_finished: take a job that has ended, and that the caller has locked, out of its row. Of several jobs, in the order of queue,
-- state and end: jobs share rows.
create or replace function {schema}.leave_finished(p_state {schema}.job_state) returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_row record;
begin
    if p_state.link_flags & 96 <> 0 then
        with gone as (
            delete from family_end where id = p_state.id returning queue, state
        )
        insert into tally_change (queue, state, change) select g.queue, g.state, -1 from gone g;
        if found or p_state.link_flags & 64 = 0 then
            return;
        end if;
        for v_row in
            select f.no, f.ids from child_end f where f.queue = p_state.queue and f.at = p_state.ends_at order by f.no for update
        loop
            continue when p_state.id <> all (v_row.ids);
            if cardinality(v_row.ids) = 1 then
                delete from child_end f where f.queue = p_state.queue and f.at = p_state.ends_at and f.no = v_row.no;
            else
                update child_end f set ids = array_remove(f.ids, p_state.id)
                where f.queue = p_state.queue and f.at = p_state.ends_at and f.no = v_row.no;
            end if;
            insert into tally_change (queue, state, change) values (p_state.queue, 4, -1);
        end loop;
        return;
    end if;
    for v_row in
        select f.no, f.ids, f.is_copy from finished f
        where f.queue = p_state.queue and f.state = p_state.state and f.at = p_state.ends_at order by f.no for update
    loop
        continue when p_state.id <> all (v_row.ids);
        if cardinality(v_row.ids) = 1 then
            delete from finished f where f.queue = p_state.queue and f.state = p_state.state and f.at = p_state.ends_at and f.no = v_row.no;
        else
            update finished f set ids = array_remove(f.ids, p_state.id)
            where f.queue = p_state.queue and f.state = p_state.state and f.at = p_state.ends_at and f.no = v_row.no;
        end if;
        if not v_row.is_copy then
            insert into tally_change (queue, state, change) values (p_state.queue, p_state.state, -1);
        end if;
    end loop;
end $$;
