-- settle_rest: what `settle_attempts` does not do the usual way. Arguments as there, but p_ids has nulls in the places of what is done, or
-- must not be done here. p_at: the deciding instant; p_until: rows that changed since are left out; p_key_ids, p_key_rows,
-- p_nexts: jobs whose key is locked, with its row and what is blocked behind it.
create or replace function {schema}.settle_rest(
    p_at timestamptz, p_until timestamptz, p_ids uuid[], p_leases smallint[], p_tokens uuid[], p_workers text[], p_marks boolean[],
    p_results bytea[], p_others json, p_has_settings boolean, p_key_ids uuid[], p_key_rows tid[], p_nexts uuid[],
    out o_done integer[], out o_states smallint[], out o_versions integer[], out o_merged integer[])
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_sweeps boolean := p_tokens is null;
    v_ended uuid[];
    v_again uuid[];
    v_ends record;
begin
    with u as (
        update job_state s set
            state = e.state, version = s.version + 1, updated_at = p_at,
            ends_at = case when e.state > 0 then p_at end,
            token = case when not v_sweeps then s.token end,
            result = case when e.state = 4 then i.result end,
            attempts = case when s.cancel_requested then s.attempts when i.kind = 2 then coalesce(i.attempts, s.attempts + 1)
                            when i.kind = 3 then s.attempts + 1 else s.attempts end,
            stalls = case when i.kind = 6 and not s.cancel_requested then s.stalls + 1 else s.stalls end,
            eligible_at = case when e.state > 0 then s.eligible_at else coalesce(e.run_at, j.created_at) end,
            is_timed = case when e.state > 0 then s.is_timed else e.run_at is not null end
        from (
            select a.id, a.lease, a.result, a.ord, coalesce(o.kind, case when v_sweeps then 6 else 1 end) as kind,
                   o.delay, o.run_at, o.attempts
            from unnest(p_ids, p_leases, p_results) with ordinality as a(id, lease, result, ord)
            left join json_to_recordset(p_others)
                 as o(ord integer, kind smallint, delay bigint, run_at timestamptz, attempts integer) on o.ord = a.ord
            where a.id is not null order by a.ord offset 0) i
        cross join lateral (select k.created_at, k.max_stalls, k.type, k.queue from job k where k.id = i.id offset 0) j
        cross join lateral (
            select c.state, case i.kind
                when 2 then coalesce(i.run_at, case when i.delay > 0 then after(p_at, i.delay) end)
                when 4 then case when i.delay is null then case when c.is_timed then c.eligible_at end
                                 when i.delay > 0 then after(p_at, i.delay) end
                end as run_at
            from (
                select case when k.cancel_requested or i.kind = 5 then 6 when i.kind = 1 then 4 when i.kind = 3 then 5
                            when i.kind = 6 and j.max_stalls > 0 and k.stalls + 1 >= j.max_stalls then 5 else 0 end as state,
                       k.is_timed, k.eligible_at
                from job_state k where k.id = i.id offset 0) c) e
        where s.id >= i.id and s.id <= i.id and s.state = 3 and s.link_flags & 44 = 0 and i.kind > 0 and s.updated_at <= p_until
          and (s.link_flags & 64 = 0 or e.state in (0, 4) and (select true from job_state k where k.id = s.id for no key update skip locked))
          and case when v_sweeps then s.ends_at <= p_at else
              s.token = p_tokens[coalesce(i.lease, 1)] and s.ends_at > p_at
              and s.worker = coalesce(p_workers[coalesce(i.lease, 1)], s.worker)
              and (s.key is not null) = p_marks[coalesce(i.lease, 1)]
              end
          -- A cancel that came since this statement began: it is looked at again.
          and s.cancel_requested = (select k.cancel_requested from job_state k where k.id = i.id)
          and not (p_has_settings and e.state = 5 and j.type <> 'taskharbor.failed' and exists (
              select from queue_settings r where r.fail_queue is not null and r.queue in (j.queue, '*')))
        returning i.ord, s.version
    )
    select array_agg(u.ord::integer) into o_done from u;
    if o_done is null then
        o_done := '{}';
        return;
    end if;

    select array_agg(d.ord) as ords, array_agg(s.state) as states, array_agg(s.version) as versions,
           array_agg(s.id) filter (where s.state >= 4) as ended, array_agg(s.id) filter (where s.state = 0) as again,
           bool_or(s.link_flags & 2 <> 0 and s.state >= 4) as is_remembered, bool_or(s.state <> 4 or s.starts > 1) as has_history
    into v_ends from unnest(o_done) as d(ord) cross join lateral (select * from job_state k where k.id = p_ids[d.ord] offset 0) s;
    o_done := v_ends.ords;
    o_states := v_ends.states;
    o_versions := v_ends.versions;
    v_ended := v_ends.ended;
    v_again := v_ends.again;
    if v_ends.has_history then
        perform write_history(p_at, p_ids, o_done, p_others, v_sweeps);
    end if;
    if p_has_settings then
        delete from slot where ctid = any (array(
            select t.ctid from unnest(o_done) as d(ord)
            cross join lateral (select k.queue, k.id from job_state k where k.id = p_ids[d.ord] offset 0) s
            cross join lateral (select k.ctid from slot k where k.queue = s.queue and k.id = s.id offset 0) t));
    end if;
    if v_ends.is_remembered or p_nexts is not null then
        perform lock_idempotency(v_ended || p_nexts);
    end if;
    if v_ends.is_remembered then
        update idempotency k set ends_at = p_at + interval '24 hours' from unnest(v_ended) as i(id) where k.job_id >= i.id and k.job_id <= i.id;
    end if;
    if p_key_ids is not null then
        select array_agg(k.row) filter (where s.state >= 4) as rows, array_agg(k.next) filter (where s.state >= 4) as nexts,
               array_agg(k.row) filter (where s.state = 0 and k.next is not null) as merged,
               array_agg(k.next) filter (where s.state = 0 and k.next is not null) as mates,
               array_agg(k.id) filter (where s.state = 0 and k.next is not null) as ids,
               array_agg(d.ord) filter (where s.state = 0 and k.next is not null) as ords
        into v_ends from unnest(o_done, o_states) as d(ord, state)
        join unnest(p_key_ids, p_key_rows, p_nexts) as k(id, row, next) on k.id = p_ids[d.ord]
        cross join lateral (select d.state) s;
        if v_ends.rows is not null then
            perform leave_keys(p_at, v_ends.rows, v_ends.nexts);
        end if;
        if v_ends.merged is not null then
            update job_key set next = null, next_seq = null where ctid = any (v_ends.merged);
            perform merge_blocked(p_at, v_ends.ids, v_ends.mates);
            o_merged := v_ends.ords;
        end if;
    end if;
    if v_ended is not null then
        perform ended(p_at, v_ended);
    end if;
    if v_again is not null then
        perform line_up(v_again, p_at);
        perform wake(array(
            select distinct s.queue from unnest(v_again) as i(id)
            cross join lateral (select k.queue from job_state k where k.id = i.id and k.eligible_at <= p_at offset 0) s));
        -- as they read, after the merges
        o_states := array(
            select case when d.state > 0 then d.state else (
                select case when k.is_timed and k.eligible_at > p_at then 0 else 1 end from job_state k where k.id = p_ids[d.ord]) end
            from unnest(o_done, o_states) with ordinality as d(ord, state, no) order by d.no);
    end if;
end $$;
