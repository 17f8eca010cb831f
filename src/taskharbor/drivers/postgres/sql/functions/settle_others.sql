-- settle_others: what `settle_attempts` does not do the usual way: everything but acks (p_others, as there), and the acks that it left;
-- in a sweep all. Arguments as there, but p_ids may have nulls in the places of what must not be done here. p_at: the deciding instant.
--   p_until: rows that changed since are left out, and so are those that another session has locked.
--   p_acks: the places of the acks that were left, or in a sweep of the stalled jobs.
--   p_key_ids, p_key_rows, p_nexts: jobs whose key is locked, with its row and what is blocked behind it.
--   Returns the places of what was done, with states (0 scheduled, 1 ready, else as stored) and versions; o_merged: as there. o_children:
--   children that have completed; o_gone: those of them that are not kept. The caller counts them all, and forgets these.
create or replace function {schema}.settle_others(
    p_at timestamptz, p_until timestamptz, p_ids uuid[], p_acks integer[], p_leases smallint[], p_tokens uuid[],
    p_workers text[], p_marks boolean[], p_results bytea[], p_others json, p_has_settings boolean, p_key_ids uuid[],
    p_key_rows tid[], p_nexts uuid[],
    out o_done integer[], out o_states smallint[], out o_versions integer[], out o_merged integer[], out o_children uuid[],
    out o_gone uuid[])
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_sweeps boolean := p_tokens is null;
    v_holders uuid[] := array(
        select k.id from unnest(p_key_ids, p_nexts) as k(id, next) where k.next is not null);  -- something is blocked behind these
    v_done record;
    v_keys record;
begin
    -- One statement, so that each job is looked up once and what is known of it serves all tables. The rules are those of `settled`
    -- and `stalled` in model/transitions.py.
    with i as (
        select o.* from json_to_recordset(p_others) as o(
            ord integer, kind smallint, delay bigint, run_at timestamptz, attempts integer, error text, trace text,
            failure_kind text, failed_at timestamptz, error_class text)
        union all
        select a.ord, case when v_sweeps then 6 else 1 end, null, null, null, null, null, null, null, null from unnest(p_acks) as a(ord)
    ), x as materialized (
        select i.ord, i.kind, i.trace, i.error, i.failure_kind, i.failed_at, i.error_class, s.*, j.type, j.created_at, e.to_state,
               case when s.cancel_requested then s.attempts when i.kind = 2 then coalesce(i.attempts, s.attempts + 1)
                    when i.kind = 3 then s.attempts + 1 else s.attempts end as to_attempts,
               case i.kind
                   when 2 then coalesce(i.run_at, case when i.delay > 0 then after(p_at, i.delay) end)
                   when 4 then case when i.delay is null then case when s.is_timed then s.eligible_at end
                                    when i.delay > 0 then after(p_at, i.delay) end
               end as run_at
        from i
        cross join lateral (
            select k.id, k.seq, k.eligible_at, k.started_at, k.ends_at, k.updated_at, k.fence, k.version, k.attempts, k.stalls, k.starts,
                   k.rank, k.link_flags, k.is_timed, k.cancel_requested, k.queue, k.lane, k.token, k.worker, k.key is not null as is_keyed
            from job_state k where k.id = p_ids[i.ord] and k.state = 3 for no key update skip locked offset 0) s
        cross join lateral (select k.created_at, k.max_stalls, k.type from job k where k.id = s.id offset 0) j
        cross join lateral (
            select (case when s.cancel_requested or i.kind = 5 then 6 when i.kind = 1 then 4 when i.kind = 3 then 5
                         when i.kind = 6 and j.max_stalls > 0 and s.stalls + 1 >= j.max_stalls then 5 else 0 end)::smallint as to_state) e
        where i.kind > 0 and s.link_flags & 44 = 0 and s.updated_at <= p_until and (s.link_flags & 64 = 0 or e.to_state in (0, 4))
          and case when v_sweeps then s.ends_at <= p_at else
              s.token = p_tokens[coalesce(p_leases[i.ord], 1)] and s.ends_at > p_at
              and s.worker = coalesce(p_workers[coalesce(p_leases[i.ord], 1)], s.worker)
              and s.is_keyed = p_marks[coalesce(p_leases[i.ord], 1)] end
          and not (p_has_settings and e.to_state = 5 and j.type <> 'taskharbor.failed' and exists (
              select from queue_settings r where r.fail_queue is not null and r.queue in (s.queue, '*')))
    ), state as (
        update job_state s set
            state = x.to_state, version = x.version + 1, updated_at = p_at, ends_at = case when x.to_state > 0 then p_at end,
            token = case when not v_sweeps then s.token end, result = case when x.to_state = 4 then p_results[x.ord] end,
            attempts = x.to_attempts, stalls = case when x.kind = 6 and not x.cancel_requested then x.stalls + 1 else x.stalls end,
            eligible_at = case when x.to_state > 0 then x.eligible_at else coalesce(x.run_at, x.created_at) end,
            is_timed = case when x.to_state > 0 then x.is_timed else x.run_at is not null end
        from x where s.id >= x.id and s.id <= x.id
    ), history as (
        insert into job_history as h (id, last_error, failed_at, failure_kind, history)
        select x.id, case when e.has_error then coalesce(x.error, e.why) end,
               case when e.has_kind then coalesce(case when x.kind = 2 then x.failed_at end, p_at) end,
               case when e.has_kind then case when x.kind = 6 then 'stalled' else x.failure_kind end end,
               json_build_array(json_build_array(
                   x.fence, x.worker, micros(x.started_at), micros(p_at),
                   case when x.to_state = 6 then 'cancelled' when x.to_state = 4 then 'completed' when x.kind = 6 then 'stalled'
                        when x.to_state = 5 then 'failed' when x.kind = 2 then 'retried' else 'released' end,
                   case when x.to_state <> 4 then case when x.kind = 6 and (v_sweeps or x.to_state <> 6) then coalesce(x.trace, e.why)
                                                      else x.trace end end,
                   case when x.to_state <> 4 then x.error_class end))
        from x
        cross join lateral (
            select case when x.kind = 6 then 'the lease of ' || x.worker || ' ran out: the worker fell silent' end as why,
                   x.to_state = 0 and x.kind = 2 or x.to_state = 5 or x.to_state = 6 and x.kind = 5 and x.error is not null as has_error,
                   x.to_state = 0 and x.kind = 2 or x.to_state = 5 as has_kind) e
        where x.to_state <> 4 or x.starts > 1
        on conflict (id) do update set
            last_error = coalesce(excluded.last_error, h.last_error),
            failed_at = coalesce(excluded.failed_at, h.failed_at),
            failure_kind = coalesce(excluded.failure_kind, h.failure_kind),
            history = append_history(h.history, excluded.history -> 0)
    ), line as (  -- as `line_up`; what takes over a blocked job changes once more before it waits
        insert into waiting (seq, eligible_at, id, rank, is_timed, has_run, queue, lane, line)
        select x.seq, coalesce(x.run_at, x.created_at), x.id, x.rank, x.run_at is not null, true, x.queue, x.lane,
               x.queue || '/' || x.lane || '/' || x.type
        from x where x.to_state = 0 and x.id <> all (v_holders)
    ), tallied as (
        insert into tally_change (queue, lane, rank, slice, change)
        select x.queue, x.lane, x.rank, case when x.run_at is not null then slice_of(x.run_at) else '-infinity' end, count(*)
        from x where x.to_state = 0 and x.id <> all (v_holders) group by 1, 2, 3, 4
    )
    select array_agg(x.ord) as ords, array_agg(x.id) as ids, array_agg(x.queue) as queues, array_agg(x.to_state) as states,
           array_agg(x.version + 1) as versions,
           array_agg((case when x.to_state = 0 and (x.run_at is null or x.run_at <= p_at) then 1 else x.to_state end)::smallint) as shown,
           array_agg(x.id) filter (where x.to_state >= 4) as ended,
           array_agg(x.queue) filter (where x.to_state = 0 and coalesce(x.run_at, x.created_at) <= p_at) as ready,
           array_agg(x.id) filter (where x.to_state = 4 and x.link_flags & 64 <> 0) as children,
           array_agg(x.id) filter (where x.to_state = 4 and x.link_flags & 64 <> 0 and p_has_settings and retention(x.queue, 4) = 0) as gone,
           bool_or(x.link_flags & 2 <> 0 and x.to_state >= 4) as is_remembered
    into v_done from x;
    o_done := coalesce(v_done.ords, '{}');
    if v_done.ords is null then
        return;
    end if;
    o_states := v_done.shown;
    o_versions := v_done.versions;
    if not v_sweeps then
        o_children := v_done.children;
        o_gone := v_done.gone;
    end if;

    if p_has_settings then
        delete from slot where ctid = any (array(
            select t.ctid from unnest(v_done.ids, v_done.queues) as d(id, queue)
            cross join lateral (select k.ctid from slot k where k.queue = d.queue and k.id = d.id offset 0) t));
    end if;
    if v_done.is_remembered or p_nexts is not null then
        perform lock_idempotency(v_done.ended || p_nexts);
    end if;
    if v_done.is_remembered then
        update idempotency k set ends_at = p_at + interval '24 hours' from unnest(v_done.ended) as i(id)
        where k.job_id >= i.id and k.job_id <= i.id;
    end if;
    if v_done.ready is not null then
        insert into handed_back (queue) select distinct unnest(v_done.ready);
    end if;
    if p_key_ids is not null then
        select array_agg(k.row) filter (where d.state >= 4) as rows, array_agg(k.next) filter (where d.state >= 4) as nexts,
               array_agg(k.row) filter (where d.state = 0 and k.next is not null) as merged,
               array_agg(k.next) filter (where d.state = 0 and k.next is not null) as mates,
               array_agg(k.id) filter (where d.state = 0 and k.next is not null) as ids,
               array_agg(d.ord) filter (where d.state = 0 and k.next is not null) as ords
        into v_keys from unnest(v_done.ids, v_done.ords, v_done.states) as d(id, ord, state)
        join unnest(p_key_ids, p_key_rows, p_nexts) as k(id, row, next) on k.id = d.id;
        if v_keys.rows is not null then
            perform leave_keys(p_at, v_keys.rows, v_keys.nexts);
        end if;
        if v_keys.merged is not null then
            update job_key set next = null, next_seq = null where ctid = any (v_keys.merged);
            perform merge_blocked(p_at, v_keys.ids, v_keys.mates);
            perform line_up(v_keys.ids, p_at);
            o_merged := v_keys.ords;
            select array_agg(s.shown order by d.no),
                   v_done.ready || array_agg(s.queue) filter (where s.is_due)
            into o_states, v_done.ready
            from unnest(v_done.ids, v_done.shown) with ordinality as d(id, shown, no)
            cross join lateral (
                select (case when k.state > 0 then d.shown when k.is_timed and k.eligible_at > p_at then 0 else 1 end)::smallint as shown,
                       k.queue, k.state = 0 and k.eligible_at <= p_at as is_due
                from job_state k where k.id = d.id offset 0) s;
        end if;
    end if;
    if v_done.ended is not null then
        perform ended(p_at, v_done.ended);
    end if;
    if v_done.ready is not null then
        perform wake(v_done.ready);
    end if;
end $$;
