-- settle: end attempts whose leases hold. The rules are those of `settled` and `stalled` in model/transitions.py and of
-- `leave` in drivers/lifecycle.py.
--   p_ids: sorted. p_leases: for each the number of its lease in p_tokens, p_workers and p_marks (is it of a job with a
--   key?); null: all have the first. p_results: null when there are none.
--   p_others: what is no ack, as [{ord, kind, delay, run_at, error, trace, failure_kind, attempts, failed_at}], with kind
--   2 retry, 3 fail, 4 release, 5 cancelled, 6 stalled; null: all are acks, or in a sweep all are stalled.
--   p_tokens null: a sweep. Leases that have run out instead; the caller has locked the rows and their keys.
--   Not done here, for the caller to settle one by one: jobs with copies, failures that make a failure job, and whatever
--   somebody else has locked or changed this moment. So this waits for no key, and its instant is behind all it meets.
--   Returns the places of what was done with states (0 scheduled, 1 ready, else as stored) and versions; o_done null: all were acked, to the version o_versions[1].
--   o_merged: the places of those that took over a blocked job.
create or replace function {schema}.settle(
    p_now timestamptz, p_ids uuid[], p_leases smallint[], p_tokens uuid[], p_workers text[], p_marks boolean[],
    p_results bytea[], p_others json,
    out o_at timestamptz, out o_done integer[], out o_states smallint[], out o_versions integer[], out o_merged integer[])
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_count integer := cardinality(p_ids);
    v_sweeps boolean := p_tokens is null;
    v_until timestamptz;
    v_has_settings boolean;
    v_ids uuid[] := p_ids;
    v_key_ids uuid[];       -- jobs whose key is locked, with its row and what is blocked behind it
    v_key_rows tid[];
    v_nexts uuid[];
    v_sum record;
    v_ended uuid[];
    v_again uuid[];
    v_ends record;
begin
    if v_sweeps or true = any (p_marks) then
        select array_agg(x.id), array_agg(k.ctid), array_agg(k.next) into v_key_ids, v_key_rows, v_nexts
        from unnest(p_ids, p_leases) as i(id, lease)
        cross join lateral (select s.id, s.queue, s.key from job_state s where s.id = i.id and s.key is not null offset 0) x
        cross join lateral (
            select q.ctid, q.next from job_key q where q.queue = x.queue and q.key = x.key and q.holder = x.id
            for update skip locked offset 0) k
        where v_sweeps or p_marks[coalesce(i.lease, 1)];
        if not v_sweeps and coalesce(cardinality(v_key_ids), 0) < (
            select count(*) from unnest(p_ids, p_leases) as i(id, lease) where p_marks[coalesce(i.lease, 1)])
        then  -- somebody has a key, or a lease is old
            v_ids := array(
                select case when p_marks[coalesce(i.lease, 1)] and i.id <> all (coalesce(v_key_ids, '{}')) then null else i.id end
                from unnest(p_ids, p_leases) with ordinality as i(id, lease, ord) order by i.ord);
        end if;
    end if;
    o_at := coalesce(p_now, clock_timestamp());
    v_until := case when p_now is null and not v_sweeps then o_at else 'infinity' end;
    v_has_settings := exists (
        select from queue_settings r where r.max_running is not null or r.fail_queue is not null or r.has_retention);

    if p_others is null and not v_sweeps then
        with u as (
            update job_state s set
                state = case when s.cancel_requested then 6 else 4 end, version = s.version + 1, updated_at = o_at, ends_at = o_at,
                result = case when s.cancel_requested then null else i.result end
            from unnest(v_ids, p_leases, p_results) with ordinality as i(id, lease, result, ord)
            where s.id >= i.id and s.id <= i.id and s.state = 3 and s.token = p_tokens[coalesce(i.lease, 1)] and s.ends_at > o_at
              and s.worker = coalesce(p_workers[coalesce(i.lease, 1)], s.worker)
              and (s.key is not null) = p_marks[coalesce(i.lease, 1)] and s.link_flags & 12 = 0 and s.updated_at <= v_until
            returning i.ord, s.state, s.queue, s.version, s.starts, s.link_flags
        )
        select count(*) as count, array_agg(u.ord::integer) as ords, min(u.state) as first_state, max(u.state) as last_state,
               min(u.queue) as queue, max(u.queue) as last_queue, min(u.version) as version, max(u.version) as last_version,
               max(u.starts) as starts, bool_or(u.link_flags & 2 <> 0) as is_remembered
        into v_sum from u;
        o_done := v_sum.ords;
        if v_sum.count = v_count and v_sum.first_state = 4 and v_sum.last_state = 4 and v_sum.queue = v_sum.last_queue
           and v_sum.starts = 1 and not v_sum.is_remembered and not v_has_settings
        then  -- nothing else to see to
            insert into finished (at, queue, state, ids)
            select o_at, v_sum.queue, 4, p_ids[i : i + 99] from generate_series(1, v_count, 100) as i;
            if v_key_ids is not null then
                perform leave_keys(o_at, v_key_rows, v_nexts);
            end if;
            perform drop_hints(p_leases, p_tokens, o_done);
            if v_sum.version = v_sum.last_version then
                o_done := null;
                o_versions := array[v_sum.version];
                return;
            end if;
            v_ended := null;
        else
            v_ended := p_ids;
        end if;
    else
        with u as (
            update job_state s set
                state = e.state, version = s.version + 1, updated_at = o_at,
                ends_at = case when e.state > 0 then o_at end,
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
                from unnest(v_ids, p_leases, p_results) with ordinality as a(id, lease, result, ord)
                left join json_to_recordset(p_others)
                     as o(ord integer, kind smallint, delay bigint, run_at timestamptz, attempts integer) on o.ord = a.ord
                order by a.ord offset 0) i
            cross join lateral (select k.created_at, k.max_stalls, k.type, k.queue from job k where k.id = i.id offset 0) j
            cross join lateral (
                select c.state, case i.kind
                    when 2 then coalesce(i.run_at, case when i.delay > 0 then after(o_at, i.delay) end)
                    when 4 then case when i.delay is null then case when c.is_timed then c.eligible_at end
                                     when i.delay > 0 then after(o_at, i.delay) end
                    end as run_at
                from (
                    select case when k.cancel_requested or i.kind = 5 then 6 when i.kind = 1 then 4 when i.kind = 3 then 5
                                when i.kind = 6 and j.max_stalls > 0 and k.stalls + 1 >= j.max_stalls then 5 else 0 end as state,
                           k.is_timed, k.eligible_at
                    from job_state k where k.id = i.id offset 0) c) e
            where s.id >= i.id and s.id <= i.id and s.state = 3 and s.link_flags & 12 = 0 and s.updated_at <= v_until
              and case when v_sweeps then s.ends_at <= o_at else
                  s.token = p_tokens[coalesce(i.lease, 1)] and s.ends_at > o_at
                  and s.worker = coalesce(p_workers[coalesce(i.lease, 1)], s.worker)
                  and (s.key is not null) = p_marks[coalesce(i.lease, 1)]
                  end
              -- A cancel that came since this statement began: it is looked at again.
              and s.cancel_requested = (select k.cancel_requested from job_state k where k.id = i.id)
              and not (v_has_settings and e.state = 5 and j.type <> 'taskharbor.failed' and exists (
                  select from queue_settings r where r.fail_queue is not null and r.queue in (j.queue, '*')))
            returning i.ord, s.version
        )
        select array_agg(u.ord::integer) into o_done from u;
        v_ended := p_ids;
    end if;
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
    if v_ended is null then  -- only the versions differ
        return;
    end if;
    v_ended := v_ends.ended;
    v_again := v_ends.again;
    if v_ends.has_history then
        perform write_history(o_at, p_ids, o_done, p_others, v_sweeps);
    end if;
    if v_has_settings then
        delete from slot where ctid = any (array(
            select t.ctid from unnest(o_done) as d(ord)
            cross join lateral (select k.queue, k.id from job_state k where k.id = p_ids[d.ord] offset 0) s
            cross join lateral (select k.ctid from slot k where k.queue = s.queue and k.id = s.id offset 0) t));
    end if;
    if v_ends.is_remembered then
        update idempotency k set ends_at = o_at + interval '24 hours' from unnest(v_ended) as i(id) where k.job_id >= i.id and k.job_id <= i.id;
    end if;
    if v_key_ids is not null then
        select array_agg(k.row) filter (where s.state >= 4) as rows, array_agg(k.next) filter (where s.state >= 4) as nexts,
               array_agg(k.row) filter (where s.state = 0 and k.next is not null) as merged,
               array_agg(k.next) filter (where s.state = 0 and k.next is not null) as mates,
               array_agg(k.id) filter (where s.state = 0 and k.next is not null) as ids,
               array_agg(d.ord) filter (where s.state = 0 and k.next is not null) as ords
        into v_ends from unnest(o_done, o_states) as d(ord, state)
        join unnest(v_key_ids, v_key_rows, v_nexts) as k(id, row, next) on k.id = p_ids[d.ord]
        cross join lateral (select d.state) s;
        if v_ends.rows is not null then
            perform leave_keys(o_at, v_ends.rows, v_ends.nexts);
        end if;
        if v_ends.merged is not null then
            update job_key set next = null, next_seq = null where ctid = any (v_ends.merged);
            perform merge_blocked(o_at, v_ends.ids, v_ends.mates);
            o_merged := v_ends.ords;
        end if;
    end if;
    if v_ended is not null then
        perform ended(o_at, v_ended);
    end if;
    if v_again is not null then
        perform line_up(v_again, o_at);
        perform wake(array(
            select distinct s.queue from unnest(v_again) as i(id)
            cross join lateral (select k.queue from job_state k where k.id = i.id and k.eligible_at <= o_at offset 0) s));
    end if;
    if v_again is not null then  -- as they read, after the merges
        o_states := array(
            select case when d.state > 0 then d.state else (
                select case when k.is_timed and k.eligible_at > o_at then 0 else 1 end from job_state k where k.id = p_ids[d.ord]) end
            from unnest(o_done, o_states) with ordinality as d(ord, state, no) order by d.no);
    end if;
    if not v_sweeps then
        perform drop_hints(p_leases, p_tokens, o_done);
    end if;
end $$;
