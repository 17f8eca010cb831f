-- Limits on what is handed out, and what time does to jobs and leases.

-- Claims under a limit go one after the other; unlimited ones never come here. Whoever holds rows must not wait at a
-- gate: then nobody who waits there keeps a heartbeat waiting, and nobody waits crosswise. p_waits false: false when
-- somebody else stands there.
create function {schema}.pass_the_gates_alone(p_queues text[], p_worker text, p_waits boolean) returns boolean
language plpgsql set search_path = {schema}, pg_temp as $$
declare
    v_gate bigint;
begin
    for v_gate in
        select lock_id('claim', r.queue) from rule r
        where (r.queue = any (p_queues) or r.queue = '*') and (r.max_running is not null or r.execute_count is not null)
        union
        select lock_id('worker', p_worker) where p_worker is not null
        order by 1
    loop
        if p_waits then
            perform pg_advisory_xact_lock(v_gate);
        elsif not pg_try_advisory_xact_lock(v_gate) then
            return false;
        end if;
    end loop;
    return true;
end $$;

-- watch: of the idle sessions that wait for the same work, let a few be told of it; the others find what those leave.
-- The place is held until it is given back or the session ends. Answers which of them it is, or null.
create function {schema}.watch(p_line text) returns integer
language plpgsql set search_path = {schema}, pg_temp as $$
begin
    for i in 1 .. 2 loop
        if pg_try_advisory_lock(lock_id('watch', p_line, i::text::bytea)) then
            return i;
        end if;
    end loop;
    return null;
end $$;

create function {schema}.unwatch(p_line text, p_place integer) returns boolean
language plpgsql set search_path = {schema}, pg_temp as $$
begin
    return pg_advisory_unlock(lock_id('watch', p_line, p_place::text::bytea));
end $$;

-- How many jobs the rules of one level, a queue or the harbor, let out now.
create function {schema}.room(p_level text, p_now timestamptz)
returns integer language plpgsql set search_path = {schema}, pg_temp as $$
declare
    v_rule record;
    v_room integer := 1000000;
begin
    select * into v_rule from rule r where r.queue = p_level;
    if not found then
        return v_room;
    end if;
    if v_rule.paused then
        return 0;
    end if;
    if v_rule.max_running is not null then
        -- What has run out is counted first: those leases are ours until the end of this step, so that nobody
        -- revives one of them.
        v_room := v_rule.max_running + expired_leases(p_level, p_now) - (
            select count(*)::integer from place p where p.state = 3 and (p_level = '*' or p.queue = p_level)) - (
            select coalesce(sum(cardinality(h.ids)), 0)::integer from held h where p_level = '*' or h.queue = p_level);
    end if;
    if v_rule.execute_count is not null then
        v_room := least(v_room, budget_room('execute', p_level, v_rule.execute_count, v_rule.execute_us, p_now));
    end if;
    return greatest(v_room, 0);
end $$;

-- How many leases of one level have run out. Each is locked. Those that somebody else has locked are left out, and so
-- count as running: it may be under extension this very moment, by somebody whose clock was read before ours. Nobody
-- waits for that here, with a gate in hand: whoever deals with the lease knows in a moment.
create function {schema}.expired_leases(p_level text, p_now timestamptz) returns integer
language sql volatile set search_path = {schema}, pg_temp as $$
    select ((
        select count(*) from (
            select from place p
            where p.state = 3 and (p_level = '*' or p.queue = p_level) and p.lease_expires_at <= p_now
            for update skip locked) e) + (
        select coalesce(sum(e.count), 0) from (
            select cardinality(h.ids) as count from held h
            where (p_level = '*' or h.queue = p_level) and h.expires_at <= p_now
            for update skip locked) e))::integer
$$;

create function {schema}.spend_execution(
    p_queue text, p_worker text, p_rate_count integer, p_rate_us bigint, p_count integer, p_now timestamptz)
returns void language plpgsql set search_path = {schema}, pg_temp as $$
begin
    perform budget_spend('execute', r.queue, r.execute_us, p_count, p_now)
    from rule r where r.queue in (p_queue, '*') and r.execute_count is not null;
    if p_rate_count is not null then
        perform budget_spend('worker', p_worker, p_rate_us, p_count, p_now);
    end if;
end $$;

-- Due jobs of a queue become ready, oldest first. Nothing that can be read changes; jobs that nothing else
-- has happened to are plain from now on.
create function {schema}.promote_due(p_queue text, p_now timestamptz, p_limit integer) returns integer
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_moved integer;
begin
    insert into ready (seq, eligible_at, id, rank, ties, is_timed, is_plain, queue, lane, line)
    select p.seq, p.eligible_at, p.id, p.rank, p.ties, true, p.version = 1 and p.ties = 0, p.queue, p.lane,
           p.queue || '/' || p.lane || '/' || j.type
    from make_ready(array(
        select c.ctid from place c where c.queue = p_queue and c.state = 0 and c.run_at <= p_now
        order by c.run_at limit p_limit for update skip locked)) p
    cross join lateral (select k.type from job k where k.id = p.id offset 0) j;
    get diagnostics v_moved = row_count;
    return v_moved;
end $$;

-- Of these rows, plain jobs leave and others change their state; as they were or are now.
create function {schema}.make_ready(p_rows tid[]) returns setof {schema}.place
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_indexscan = off set enable_indexonlyscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query delete from place where ctid = any (p_rows) and version = 1 and ties = 0 returning *;
    return query update place set state = 1 where ctid = any (p_rows) and (version > 1 or ties <> 0) returning *;
end $$;

-- promote: due jobs of every queue.
create function {schema}.promote(p_now timestamptz, p_limit integer) returns integer
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_queue text;
    v_queues text[] := '{}';
    v_moved integer := 0;
    v_more integer;
begin
    select min(queue) into v_queue from place where state = 0;
    while v_queue is not null and v_moved < p_limit loop
        v_more := promote_due(v_queue, v_now, p_limit - v_moved);
        if v_more > 0 then
            v_moved := v_moved + v_more;
            v_queues := v_queues || v_queue;
        end if;
        select min(queue) into v_queue from place where state = 0 and queue > v_queue;
    end loop;
    if v_moved > 0 then
        perform wake(v_queues);
    end if;
    return v_moved;
end $$;

-- extend: count leases anew from now; one row per lease that held, by its place in p_ids.
--   p_leases, p_tokens, p_workers: as in exchange. p_progress: null when there is none.
create function {schema}.extend(
    p_now timestamptz, p_ids uuid[], p_leases smallint[], p_tokens text[], p_workers text[], p_progress text[],
    p_lease_us bigint)
returns table (o_ord integer, o_fence bigint, o_claimed_by text, o_queue text, o_cancel_requested boolean,
               o_version integer, o_expires_at timestamptz, o_at timestamptz)
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz;
    v_held tid[];
    v_places tid[];
    v_row record;
begin
    -- Locked first, in the order of all steps, stamped then.
    v_held := array(select h.ctid from held h where h.token = any (p_tokens) order by h.token, h.no for update);
    if p_progress is not null and cardinality(v_held) > 0 then  -- which only a place can tell
        for v_row in
            select h.token, h.no from held h where h.token = any (p_tokens) order by h.token, h.no
        loop
            perform unpack_held(v_row.token, v_row.no, array(
                select i.id from unnest(p_ids, p_progress) as i(id, progress) where i.progress is not null));
        end loop;
    end if;
    v_places := array(
        select q.ctid from unnest(p_ids) with ordinality as s(id, ord)
        left join lateral (
            select p.ctid from place p where p.id = s.id and p.state + 0 = 3 and p.token = any (p_tokens)
            for update offset 0) q on true
        order by s.ord);
    v_now := coalesce(p_now, clock_timestamp());
    if cardinality(v_held) > 0 then
        return query select * from extend_held(v_now, p_ids, p_leases, p_tokens, p_workers, p_lease_us);
    end if;
    if cardinality(array_remove(v_places, null)) > 0 then
        return query select * from lengthen(v_now, v_places, p_leases, p_tokens, p_workers, p_progress, p_lease_us);
    end if;
end $$;

-- The same for plain jobs, whose rows the caller has locked. Of a row that is extended in part, that part goes on as a row of its own.
create function {schema}.extend_held(
    p_now timestamptz, p_ids uuid[], p_leases smallint[], p_tokens text[], p_workers text[], p_lease_us bigint)
returns table (o_ord integer, o_fence bigint, o_claimed_by text, o_queue text, o_cancel_requested boolean,
               o_version integer, o_expires_at timestamptz, o_at timestamptz)
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = on set enable_nestloop = off
set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_held record;
    v_expires timestamptz := after(p_now, p_lease_us);
begin
    for v_held in
        select h.no, h.token, h.queue, h.worker, h.started_at, h.extensions,
            array_agg(m.id) filter (where a.ord is null) as rest_ids,
            array_agg(m.seq) filter (where a.ord is null) as rest_seqs,
            array_agg(m.id) filter (where a.ord is not null) as ids,
            array_agg(m.seq) filter (where a.ord is not null) as seqs,
            array_agg(a.ord::integer) filter (where a.ord is not null) as ords
        from (select * from held where token = any (p_tokens) and expires_at > p_now) h
        cross join lateral unnest(h.ids, h.seqs) as m(id, seq)
        left join unnest(p_ids, p_leases) with ordinality as a(id, lease, ord)
          on a.id = m.id and p_tokens[a.lease] = h.token and coalesce(p_workers[a.lease], h.worker) = h.worker
        group by h.no, h.token, h.queue, h.worker, h.started_at, h.extensions
    loop
        continue when v_held.ids is null;
        if v_held.rest_ids is null then
            update held set expires_at = v_expires, updated_at = p_now, extensions = extensions + 1
            where token = v_held.token and no = v_held.no;
        else
            update held set ids = v_held.rest_ids, seqs = v_held.rest_seqs
            where token = v_held.token and no = v_held.no;
            insert into held (queue, token, worker, started_at, expires_at, updated_at, extensions, ids, seqs)
            values (v_held.queue, v_held.token, v_held.worker, v_held.started_at, v_expires, p_now,
                    v_held.extensions + 1, v_held.ids, v_held.seqs);
        end if;
        return query
        select u.ord, greatest(1, micros(v_held.started_at)), v_held.worker, v_held.queue, false,
               3 + v_held.extensions, v_expires, p_now
        from unnest(v_held.ords) as u(ord);
    end loop;
end $$;

-- lengthen: the same for rows of place that the caller has locked.
create function {schema}.lengthen(
    p_now timestamptz, p_rows tid[], p_leases smallint[], p_tokens text[], p_workers text[], p_progress text[],
    p_lease_us bigint)
returns table (o_ord integer, o_fence bigint, o_claimed_by text, o_queue text, o_cancel_requested boolean,
               o_version integer, o_expires_at timestamptz, o_at timestamptz)
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_indexscan = off set enable_indexonlyscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    update place p set
        lease_expires_at = after(p_now, p_lease_us), version = p.version + 1, updated_at = p_now,
        progress = coalesce(s.progress::json, p.progress)
    from unnest(p_rows, p_leases, p_progress) with ordinality as s(row, lease, progress, ord)
    where p.ctid = s.row and p.state = 3 and p.token = p_tokens[s.lease] and p.lease_expires_at > p_now
      and coalesce(p_workers[s.lease], p.claimed_by) = p.claimed_by
    returning s.ord::integer, p.fence, p.claimed_by, p.queue, p.cancel_requested, p.version, p.lease_expires_at, p_now;
end $$;
