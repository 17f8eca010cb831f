-- ended: file jobs that have just ended under their queue, state and end, as `end` in drivers/lifecycle.py. Where a queue keeps none,
-- forget them instead. Children have completed here; the caller counts them, and forgets those.
create or replace function {schema}.ended(p_now timestamptz, p_ids uuid[]) returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_rest record;
begin
    for v_rest in
        select s.queue, s.state, s.link_flags & 4 <> 0 as is_copy, s.link_flags & 64 <> 0 as is_child, array_agg(s.id) as ids, array_agg(s.seq) as seqs
        from job_state s where s.id = any (p_ids)
        group by 1, 2, 3, 4
    loop
        if retention(v_rest.queue, v_rest.state) = 0 then
            if not v_rest.is_child then
                perform forget(v_rest.ids);
            end if;
        elsif v_rest.is_child then
            insert into child_end (at, queue, ids)
            select p_now, v_rest.queue, v_rest.ids[i : i + 99] from generate_series(1, cardinality(v_rest.ids), 100) as i;
        elsif v_rest.state = 4 or v_rest.is_copy then
            insert into finished (at, queue, state, is_copy, ids)
            select p_now, v_rest.queue, v_rest.state, v_rest.is_copy, v_rest.ids[i : i + 99]
            from generate_series(1, cardinality(v_rest.ids), 100) as i;
        else
            insert into finished (at, queue, state, seq, ids)
            select p_now, v_rest.queue, v_rest.state, r.seq, array[r.id] from unnest(v_rest.ids, v_rest.seqs) as r(id, seq);
        end if;
        if not v_rest.is_copy and retention(v_rest.queue, v_rest.state) is distinct from 0 then
            insert into tally_change (queue, state, change) values (v_rest.queue, v_rest.state, cardinality(v_rest.ids));
        end if;
    end loop;
end $$;
