-- add_children: store children that are nothing but that, for a step that has counted them at their parents.
--   They are stored as `Arrival` in drivers/family_enqueue.py stores them. Arrays as in `enqueue`; p_parents and p_roots may have one element for all, too (a root of null: the parent is it).
--   p_is_new: trust that no id is known; if one is, this fails with 23505. Else another call may have stored one this moment:
--   then it fails with 40001, and the step begins again.
create or replace function {schema}.add_children(
    p_now timestamptz, p_is_new boolean, p_ids uuid[], p_seqs bigint[], p_parents uuid[], p_roots uuid[], p_queues text[],
    p_types text[], p_payloads bytea[], p_headers text[], p_priorities smallint[], p_lanes text[], p_run_ats timestamptz[],
    p_timeouts bigint[], p_max_attempts integer[], p_max_stalls integer[], p_min_backoffs bigint[], p_max_backoffs bigint[])
returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_stored integer;
begin
    if p_is_new and exists (select from alias) and exists (
        select from unnest(p_ids) as i(id) cross join lateral (select from alias a where a.id = i.id offset 0) a)
    then
        raise exception 'an id is known' using errcode = '23505';
    end if;
    insert into job (id, seq, queue, type, payload, created_at, headers, timeout_us, max_attempts, max_stalls, min_backoff_us,
                     max_backoff_us, parent, root)
    select i.id, i.seq, coalesce(i.queue, p_queues[1]), coalesce(i.type, p_types[1]), i.payload, p_now, i.headers::json,
           coalesce(i.timeout, p_timeouts[1], 0), coalesce(i.max_attempts, p_max_attempts[1], 0),
           coalesce(i.max_stalls, p_max_stalls[1], 0), i.min_backoff, i.max_backoff, coalesce(i.parent, p_parents[1]),
           case when cardinality(p_roots) = 1 then p_roots[1] else i.root end
    from unnest(p_ids, p_seqs, p_queues, p_types, p_payloads, p_headers, p_timeouts, p_max_attempts, p_max_stalls, p_min_backoffs,
                p_max_backoffs, p_parents, p_roots)
         as i(id, seq, queue, type, payload, headers, timeout, max_attempts, max_stalls, min_backoff, max_backoff, parent, root)
    order by i.id
    on conflict (id) do nothing;
    get diagnostics v_stored = row_count;
    if v_stored < cardinality(p_ids) then
        raise exception 'an id is known' using errcode = case when p_is_new then '23505' else '40001' end;
    end if;
    insert into job_state (id, seq, eligible_at, updated_at, rank, state, link_flags, is_timed, queue, lane)
    select i.id, i.seq, coalesce(i.run_at, p_now), p_now, coalesce(-i.priority, -p_priorities[1], 0), 0, 64, i.run_at is not null,
           coalesce(i.queue, p_queues[1]), coalesce(i.lane, p_lanes[1], 'any')
    from unnest(p_ids, p_seqs, p_run_ats, p_priorities, p_queues, p_lanes) as i(id, seq, run_at, priority, queue, lane);
    with line as (
        insert into waiting as w (seq, eligible_at, id, rank, is_timed, queue, lane, line)
        select i.seq, coalesce(i.run_at, p_now), i.id, coalesce(-i.priority, -p_priorities[1], 0), i.run_at is not null,
               coalesce(i.queue, p_queues[1]), coalesce(i.lane, p_lanes[1], 'any'),
               coalesce(i.queue, p_queues[1]) || '/' || coalesce(i.lane, p_lanes[1], 'any') || '/' || coalesce(i.type, p_types[1])
        from unnest(p_ids, p_seqs, p_run_ats, p_priorities, p_queues, p_lanes, p_types)
             as i(id, seq, run_at, priority, queue, lane, type)
        returning w.*
    )
    insert into tally_change (queue, lane, rank, slice, change)
    select l.queue, l.lane, l.rank, case when l.is_timed then slice_of(l.eligible_at) else '-infinity' end, count(*)
    from line l group by 1, 2, 3, 4;
end $$;
