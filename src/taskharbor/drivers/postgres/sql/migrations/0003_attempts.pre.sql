-- How jobs are handed out and how attempts end.
--
-- Plans are made once per session, often while the tables are empty, and kept when they are full. To a
-- planner that believes in one row, reading a whole index is as good as a look-up. So every look-up by
-- id stands in a lateral subquery of its own (`offset 0` keeps it there), where the key is the only way;
-- and every update of many rows goes by ctid in a function that allows nothing but TID scans.

-- exchange: settle what can be settled by itself, then hand out jobs, in one statement.
--   p_ids, p_tokens, p_workers, p_results: acks, sorted by id; null for none. An ack is done here when
--   its lease holds and its job has no ties, was started once and was not cancelled. The others are
--   left alone, for the caller to look at.
--   p_queues … p_rate_us: the claim; p_limit 0 for none. p_sweep: claim nothing, and say so, when a
--   lease of these queues has run out. p_idle: mark the queues as hungry when not enough was found.
--   p_checked_until: leases that ran out before that were looked at a moment ago. p_floor_…: per queue and
--   lane the place of the last job that the same caller took a moment ago. Entries before it are mostly
--   dead ones that no vacuum has removed yet; only higher ranks are looked at there.
--   returns a first row with o_at, o_flags (1: leases must be swept first, 2: acks are left over; in
--   both cases nothing was claimed), o_done (which acks, by
--   place) and o_versions; then the jobs that were handed out, in no order.
create function {schema}.exchange(
    p_now timestamptz, p_ids text[], p_tokens text[], p_workers text[], p_results bytea[],
    p_queues text[], p_lanes text[], p_worker text, p_limit integer, p_lease_us bigint, p_token text,
    p_types text[], p_rate_count integer, p_rate_us bigint, p_sweep boolean, p_idle boolean,
    p_checked_until timestamptz default null, p_floor_ranks smallint[] default null,
    p_floor_ats timestamptz[] default null, p_floor_seqs bigint[] default null)
returns table (
    o_id text, o_seq bigint, o_type text, o_queue text, o_payload bytea, o_created_at timestamptz, o_version integer,
    o_key bytea, o_idempotency_key bytea, o_headers text, o_rank smallint, o_lane text, o_run_at timestamptz,
    o_timeout bigint, o_attempts integer, o_max_attempts integer, o_stalls integer, o_max_stalls integer,
    o_starts integer, o_min_backoff bigint, o_max_backoff bigint, o_fence bigint, o_cancel_requested boolean,
    o_story json, o_at timestamptz, o_flags integer, o_done integer[], o_versions integer[])
language plpgsql
set search_path = {schema}, pg_temp
-- A plan made while the tables were empty must still be right when they are full.
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_micros bigint;
    v_expires timestamptz;
    v_flags integer := 0;
    v_is_gated boolean;
    v_queue text;
    v_lane text;
    v_room integer;
    v_left integer := p_limit;
    v_taken integer;
    v_rooms integer[];
    v_harbor integer;
    v_place integer := 0;
    v_floor bigint;
    v_from_rank smallint;
    v_from_at timestamptz;
    v_from_seq bigint;
    v_below_rank smallint;
begin
    if p_ids is not null then
        select d.done, d.versions into o_done, o_versions
        from complete(v_now, array(
            select q.ctid from unnest(p_ids) with ordinality as s(id, ord)
            left join lateral (select p.ctid from place p where p.id = s.id::uuid offset 0) q on true
            order by s.ord), p_tokens, p_workers, p_results,
            exists (select from rule r where r.has_retention and r.keep_completed_us = 0)) d;
        if coalesce(cardinality(o_done), 0) < cardinality(p_ids) then
            v_flags := 2;
            v_left := 0;
        end if;
    end if;

    if p_limit > 0 and p_sweep and exists (
        select from place p where p.queue = any (p_queues) and p.state = 3 and p.lease_expires_at <= v_now
        and p.lease_expires_at > coalesce(p_checked_until, '-infinity')) then
        v_flags := v_flags | 1;
        v_left := 0;
    end if;
    o_at := v_now;
    o_flags := v_flags;
    if v_left <= 0 then
        return next;
        return;
    end if;

    v_is_gated := p_rate_count is not null or exists (
        select from rule r where (r.queue = any (p_queues) or r.queue = '*')
        and (r.paused or r.max_running is not null or r.execute_count is not null));
    if v_is_gated then
        perform pass_the_gates_alone(p_queues, case when p_rate_count is not null then p_worker end, p_now);
        v_now := coalesce(p_now, clock_timestamp());
        v_rooms := array(select room(q.name, v_now) from unnest(p_queues) with ordinality as q(name, ord) order by q.ord);
        v_harbor := room('*', v_now);
        if p_rate_count is not null then
            v_harbor := least(v_harbor, budget_room('worker', p_worker, p_rate_count, p_rate_us, v_now));
        end if;
        -- Counted first, stamped then: whatever made room has ended before these leases begin.
        v_now := coalesce(p_now, clock_timestamp());
        o_at := v_now;
    end if;
    return next;
    o_done := null;
    o_versions := null;
    v_micros := (extract(epoch from v_now) * 1000000)::bigint;
    v_expires := after(v_now, p_lease_us);

    foreach v_queue in array p_queues loop
        if exists (select from place p where p.queue = v_queue and p.state = 0 and p.run_at <= v_now) then
            perform promote_due(v_queue, v_now, 10000);
        end if;
    end loop;

    foreach v_queue in array p_queues loop
        exit when v_left <= 0;
        v_place := (array_position(p_queues, v_queue) - 1) * cardinality(p_lanes);
        v_room := v_left;
        if v_is_gated then
            v_room := least(v_left, v_rooms[array_position(p_queues, v_queue)], v_harbor);
        end if;
        foreach v_lane in array p_lanes loop
            v_place := v_place + 1;
            v_floor := p_floor_seqs[v_place];
            v_from_rank := -32768;
            v_from_at := '-infinity';
            v_from_seq := 0;
            v_below_rank := 32767;
            if v_floor is not null then
                v_below_rank := p_floor_ranks[v_place];
            end if;
            -- From the left end; with a floor: higher ranks first, then what lies behind the floor.
            loop
            exit when v_room <= 0;
            return query
            select p.id::text, p.seq, j.type, p.queue, j.payload, j.created_at, p.version,
                p.key, j.idempotency_key, j.headers::text, p.rank, p.lane, p.run_at,
                j.timeout_us, p.attempts, j.max_attempts, p.stalls, j.max_stalls,
                p.starts, j.min_backoff_us, j.max_backoff_us, p.fence, p.cancel_requested,
                case when p.starts > 1 or p.ties & 4 <> 0 then json_build_array(
                    p.last_error, (extract(epoch from p.failed_at) * 1000000)::bigint, p.failure_kind, p.history,
                    j.speculates_on, j.avoid_worker) end,
                null::timestamptz, null::integer, null::integer[], null::integer[]
            from take(array(
                select c.ctid from place c
                where c.queue = v_queue and c.lane = v_lane and c.state = 1
                  and (c.rank, c.eligible_at, c.seq) > (v_from_rank, v_from_at, v_from_seq) and c.rank < v_below_rank
                  and (c.run_at is null or c.run_at <= v_now)  -- a clock that went back
                  and (c.ties & 4 = 0 or (
                      select k.avoid_worker is distinct from p_worker from job k where k.id = c.id))
                  and (p_types is null or (select k.type from job k where k.id = c.id) = any (p_types))
                order by c.rank, c.eligible_at, c.seq
                limit v_room
                for update skip locked), v_now, v_micros, v_expires, p_worker, p_token) p
            cross join lateral (select * from job k where k.id = p.id offset 0) j;
            get diagnostics v_taken = row_count;
            v_left := v_left - v_taken;
            v_room := v_room - v_taken;
            if v_is_gated and v_taken > 0 then
                v_harbor := v_harbor - v_taken;
                perform spend_execution(v_queue, p_worker, p_rate_count, p_rate_us, v_taken, v_now);
            end if;
            exit when v_floor is null;
            v_from_rank := p_floor_ranks[v_place];
            v_from_at := p_floor_ats[v_place];
            v_from_seq := v_floor;
            v_below_rank := 32767;
            v_floor := null;
            end loop;
        end loop;
    end loop;
    if p_idle and v_left > 0 then
        insert into hungry
        select q from unnest(p_queues) q where not exists (select from hungry h where h.queue = q)
        on conflict do nothing;
    end if;
end $$;

create function {schema}.forgets_completed(p_queue text) returns boolean
language plpgsql stable set search_path = {schema}, pg_temp as $$
begin
    return (select r.keep_completed_us is not distinct from 0 from rule r
            where r.has_retention and r.queue in (p_queue, '*') order by r.queue = '*' limit 1);
end $$;

-- take: put these rows, which the caller has locked, under a fresh lease.
create function {schema}.take(
    p_rows tid[], p_now timestamptz, p_micros bigint, p_expires timestamptz, p_worker text, p_token text)
returns setof {schema}.place
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_indexscan = off set enable_indexonlyscan = off set jit = off
as $$
begin
    return query
    update place p set
        state = 3, token = p_token, fence = greatest(p.fence + 1, p_micros), lease_expires_at = p_expires,
        claimed_by = p_worker, starts = p.starts + 1, started_at = p_now, progress = null,
        updated_at = p_now, version = p.version + 1
    where p.ctid = any (p_rows)
    returning p.*;
end $$;

-- complete: the acks of an exchange, for rows that were just looked up. Whatever changed since then is
-- checked again here. Where a queue keeps no completed jobs, they are deleted in the same step.
create function {schema}.complete(
    p_now timestamptz, p_rows tid[], p_tokens text[], p_workers text[], p_results bytea[], p_forgets boolean)
returns table (done integer[], versions integer[])
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_indexscan = off set enable_indexonlyscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_gone uuid[];
    v_done integer[];
    v_versions integer[];
begin
    if p_forgets then
        with gone as (
            delete from place p
            using unnest(p_rows, p_tokens, p_workers) with ordinality as s(row, token, worker, ord)
            where p.ctid = s.row and p.state = 3 and p.token = s.token and p.lease_expires_at > p_now
              and (s.worker is null or s.worker = p.claimed_by)
              and p.ties = 0 and p.starts = 1 and not p.cancel_requested and forgets_completed(p.queue)
            returning p.id, s.ord::integer as ord, p.version + 1 as version)
        select array_agg(g.id), array_agg(g.ord), array_agg(g.version) into v_gone, v_done, v_versions from gone g;
        perform forget_bodies(v_gone);
    end if;
    with kept as (
        update place p set
            state = 4, version = p.version + 1, updated_at = p_now, finished_at = p_now, result = s.result,
            claimed_by = null, lease_expires_at = null
        from unnest(p_rows, p_tokens, p_workers, p_results) with ordinality as s(row, token, worker, result, ord)
        where p.ctid = s.row and p.state = 3 and p.token = s.token and p.lease_expires_at > p_now
          and (s.worker is null or s.worker = p.claimed_by)
          and p.ties = 0 and p.starts = 1 and not p.cancel_requested
        returning s.ord::integer as ord, p.version)
    select array_agg(k.ord), array_agg(k.version) into done, versions from kept k;
    if v_done is not null then
        done := v_done || done;
        versions := v_versions || versions;
    end if;
    return next;
end $$;

create function {schema}.forget_bodies(p_ids uuid[]) returns void
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
    delete from job where ctid = any (array(
        select j.ctid from unnest(p_ids) as i(id)
        cross join lateral (select k.ctid from job k where k.id = i.id offset 0) j));
end $$;

-- Claims under a limit go one after the other; unlimited ones never come here.
create function {schema}.pass_the_gates_alone(p_queues text[], p_worker text, p_now timestamptz) returns void
language plpgsql set search_path = {schema}, pg_temp as $$
begin
    perform pg_advisory_xact_lock(l.id) from (
        select lock_id('claim', r.queue) as id from rule r
        where (r.queue = any (p_queues) or r.queue = '*') and (r.max_running is not null or r.execute_count is not null)
        union
        select lock_id('worker', p_worker) where p_worker is not null
        order by 1) l;
    -- A lease that runs out may be under extension this very moment, by somebody whose clock was read
    -- before ours: wait for that, and only then count.
    perform from place p
    where p.state = 3 and p.lease_expires_at <= coalesce(p_now, clock_timestamp())
      and exists (select from rule r where r.max_running is not null and r.queue in (p.queue, '*'))
    order by p.id for update;
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
        v_room := least(v_room, v_rule.max_running - (
            select count(*)::integer from place p
            where p.state = 3 and (p_level = '*' or p.queue = p_level) and p.lease_expires_at > p_now));
    end if;
    if v_rule.execute_count is not null then
        v_room := least(v_room, budget_room('execute', p_level, v_rule.execute_count, v_rule.execute_us, p_now));
    end if;
    return greatest(v_room, 0);
end $$;

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

-- Due jobs of a queue become ready, oldest first. Nothing that can be read changes.
create function {schema}.promote_due(p_queue text, p_now timestamptz, p_limit integer) returns integer
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_moved integer;
begin
    v_moved := make_ready(array(
        select c.ctid from place c where c.queue = p_queue and c.state = 0 and c.run_at <= p_now
        order by c.run_at limit p_limit for update skip locked));
    return v_moved;
end $$;

create function {schema}.make_ready(p_rows tid[]) returns integer
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_indexscan = off set enable_indexonlyscan = off set jit = off
as $$
declare
    v_moved integer;
begin
    update place set state = 1 where ctid = any (p_rows);
    get diagnostics v_moved = row_count;
    return v_moved;
end $$;

-- promote: due jobs of every queue.
create function {schema}.promote(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = {schema}, pg_temp as $$
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

-- extend: count leases anew from now; one row per lease that held, by its place in the arrays.
create function {schema}.extend(
    p_now timestamptz, p_ids text[], p_tokens text[], p_workers text[], p_progress text[], p_lease_us bigint)
returns table (o_ord integer, o_fence bigint, o_claimed_by text, o_queue text, o_cancel_requested boolean,
               o_version integer, o_expires_at timestamptz, o_at timestamptz)
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    return query select * from lengthen(v_now, array(
        select q.ctid from unnest(p_ids) with ordinality as s(id, ord)
        left join lateral (select p.ctid from place p where p.id = s.id::uuid offset 0) q on true
        order by s.ord), p_tokens, p_workers, p_progress, p_lease_us);
end $$;

-- lengthen: the same for rows that were just looked up. Whatever changed since then is checked again here.
create function {schema}.lengthen(
    p_now timestamptz, p_rows tid[], p_tokens text[], p_workers text[], p_progress text[], p_lease_us bigint)
returns table (o_ord integer, o_fence bigint, o_claimed_by text, o_queue text, o_cancel_requested boolean,
               o_version integer, o_expires_at timestamptz, o_at timestamptz)
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_indexscan = off set enable_indexonlyscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
    return query
    update place p set
        lease_expires_at = after(p_now, p_lease_us), version = p.version + 1, updated_at = p_now,
        progress = coalesce(s.progress::json, p.progress)
    from unnest(p_rows, p_tokens, p_workers, p_progress) with ordinality as s(row, token, worker, progress, ord)
    where p.ctid = s.row and p.state = 3 and p.token = s.token and p.lease_expires_at > p_now
      and (s.worker is null or s.worker = p.claimed_by)
    returning s.ord::integer, p.fence, p.claimed_by, p.queue, p.cancel_requested, p.version, p.lease_expires_at, p_now;
end $$;
