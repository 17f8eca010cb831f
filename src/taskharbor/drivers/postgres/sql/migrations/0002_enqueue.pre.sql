-- How jobs get in. Everything about an enqueue happens in here, so that every client of the database,
-- whatever its language, gets the same promise inside its own transaction.
--
-- Names. A name that is looked up when a statement runs can be taken by whoever may create things in a schema
-- of the caller's search_path: `bigint * interval` fits an operator of theirs better than ours. So every function
-- here either has a search_path of its own, or is one expression that was read when it was made (`return …`),
-- which costs nothing and can still be inlined.
--
-- Rights. The four functions that callers enqueue with run with the rights of their owner, so that a role may be
-- let in to enqueue and nothing else. 0006 takes the right to call any function away from PUBLIC.

-- The advisory lock of one thing that must be dealt with one after the other. The order of all locks is written
-- down in 0006_steps.
create function {schema}.lock_id(p_kind text, p_name text, p_key bytea default null) returns bigint
language sql immutable parallel safe
return pg_catalog.hashtextextended(
    {schema_text}::text || '/'::text || p_kind || '/'::text || p_name || '/'::text
    || coalesce(pg_catalog.encode(p_key, 'hex'::text), ''::text), 20::bigint);

create function {schema}.after(p_from timestamptz, p_us bigint) returns timestamptz
language sql immutable parallel safe
return p_from operator(pg_catalog.+) (p_us::double precision operator(pg_catalog.*) interval '1 microsecond');

-- Tell listeners that jobs became ready. Without p_always only queues that somebody waits for are
-- named, and each of them once: the one who wakes takes the mark away.
create function {schema}.wake(p_queues text[], p_always boolean default false) returns void
language plpgsql set search_path = {schema}, pg_temp as $$
declare
    v_queue text;
begin
    if p_always then
        perform pg_notify('taskharbor:' || current_schema(), 'work ' || s.queue)
        from (select distinct unnest(p_queues) as queue) s;
    elsif exists (select from hungry h where h.queue = any (p_queues)) then
        for v_queue in
            delete from hungry where ctid = any (array(
                select h.ctid from hungry h where h.queue = any (p_queues) for update skip locked))
            returning queue
        loop
            perform pg_notify('taskharbor:' || current_schema(), 'work ' || v_queue);
        end loop;
    end if;
end $$;

-- ------------------------------------------------------------------ budgets of rate limits

-- A clock that goes back meets entries of its future. They count, so that nothing is given twice, until p_us after the
-- clock was first seen behind them; a row of the kind `behind` remembers when that was. Answers it, or null.
-- Callers hold the lock of the budget.
create function {schema}.budget_behind(p_kind text, p_name text, p_us bigint, p_now timestamptz)
returns timestamptz language plpgsql set search_path = {schema}, pg_temp as $$
declare
    v_name text := p_kind || '/' || p_name;
    v_since timestamptz;
begin
    if not exists (select from spent s where s.kind = p_kind and s.name = p_name and s.at > p_now) then
        if exists (select from spent s where s.kind = 'behind' and s.name = v_name) then
            delete from spent where kind = 'behind' and name = v_name;
        end if;
        return null;
    end if;
    select max(s.at) into v_since from spent s where s.kind = 'behind' and s.name = v_name;
    if v_since is null or v_since > p_now then
        delete from spent where kind = 'behind' and name = v_name;
        insert into spent values ('behind', v_name, p_now, 0, after(p_now, 2 * p_us));
        return p_now;
    elsif p_now >= after(v_since, p_us) then
        delete from spent where kind = p_kind and name = p_name and at > p_now;
        delete from spent where kind = 'behind' and name = v_name;
        return null;
    end if;
    return v_since;
end $$;

-- How much of a budget is left at p_now. An entry leaves the window exactly p_us after it was made.
create function {schema}.budget_room(p_kind text, p_name text, p_count integer, p_us bigint, p_now timestamptz)
returns integer language plpgsql set search_path = {schema}, pg_temp as $$
begin
    perform budget_behind(p_kind, p_name, p_us, p_now);
    return (select greatest(p_count - coalesce(sum(s.count), 0), 0)::integer from spent s
            where s.kind = p_kind and s.name = p_name and s.at > after(p_now, -p_us));
end $$;

-- How long until p_wanted more fit, in microseconds; 0 when they fit now.
create function {schema}.budget_wait(
    p_kind text, p_name text, p_count integer, p_us bigint, p_wanted integer, p_now timestamptz)
returns bigint language plpgsql set search_path = {schema}, pg_temp as $$
declare
    v_behind timestamptz := budget_behind(p_kind, p_name, p_us, p_now);
begin
    return coalesce((
        select greatest((extract(epoch from s.at - p_now) * 1000000)::bigint + p_us, 0)
        from (select e.at, sum(e.count) over (order by e.at) as freed, sum(e.count) over () as spent
              from (select case when at >= after(v_behind, p_us) then v_behind else at end as at, count from spent
                    where kind = p_kind and name = p_name and at > after(p_now, -p_us)) e) s
        -- A rate that was lowered may be spent more than once over.
        where p_wanted + s.spent > p_count and s.freed >= p_wanted + s.spent - p_count
        order by s.at limit 1), 0);
end $$;

-- Spend from a budget.
create function {schema}.budget_spend(p_kind text, p_name text, p_us bigint, p_spent integer, p_now timestamptz)
returns void language plpgsql set search_path = {schema}, pg_temp as $$
begin
    delete from spent where kind = p_kind and name = p_name and at <= after(p_now, -p_us);
    insert into spent values (p_kind, p_name, p_now, p_spent, after(p_now, p_us))
    on conflict (kind, name, at) do update set count = spent.count + excluded.count;
end $$;

-- ------------------------------------------------------------------ enqueue

-- enqueue: store jobs, all or none. An array may be null where every job has the default, and p_queues,
-- p_types, p_priorities, p_lanes, p_timeouts, p_max_attempts and p_max_stalls may have one element for all.
--   p_always_wake: send a notification whether or not somebody waits for one.
--   p_is_new: trust that no id is known, which is cheaper; if one is, this fails with 23505.
--   p_flags: per job, what it may change in the waiting job of its key: four signs, for data (1, 0),
--   run_at (1, 0, L if later, E if earlier), retry (1, 0) and reset_counts (1, 0, - as data).
--   returns a first row with ord 0 and the deciding instant; its result is 'stored', or 'limited' or
--   'never' when a rate of queue o_id stands against it (o_detail: microseconds to wait, or the limit)
--   and nothing was stored. Then a row for every job that was not simply created.
create function {schema}.enqueue(
    p_now timestamptz, p_always_wake boolean, p_is_new boolean,
    p_ids text[], p_queues text[], p_types text[], p_payloads bytea[],
    p_headers text[] default null, p_keys bytea[] default null, p_flags text[] default null,
    p_idempotency_keys bytea[] default null, p_priorities smallint[] default null, p_lanes text[] default null,
    p_run_ats timestamptz[] default null, p_delays bigint[] default null, p_timeouts bigint[] default null,
    p_max_attempts integer[] default null, p_max_stalls integer[] default null,
    p_min_backoffs bigint[] default null, p_max_backoffs bigint[] default null)
returns table (o_ord integer, o_id text, o_result text, o_version integer, o_at timestamptz, o_detail bigint)
language plpgsql security definer
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_count integer := cardinality(p_ids);
    v_seqs bigint[];
    v_stored integer;
begin
    if p_keys is not null or p_idempotency_keys is not null
       or exists (select from rule r where r.enqueue_count is not null and (r.queue = '*' or r.queue = any (p_queues)))
       or exists (select from alias) and exists (
           select from unnest(p_ids) as i(id) cross join lateral (select from alias a where a.id = i.id::uuid offset 0) a)
    then
        return query select * from enqueue_in_order(
            p_now, p_always_wake, p_ids, each(p_queues, v_count), each(p_types, v_count), p_payloads, p_headers, p_keys,
            p_flags, p_idempotency_keys, each(p_priorities, v_count), each(p_lanes, v_count), p_run_ats, p_delays,
            each(p_timeouts, v_count), each(p_max_attempts, v_count), each(p_max_stalls, v_count), p_min_backoffs,
            p_max_backoffs);
        return;
    end if;

    v_seqs := array(select nextval('job_seq') from generate_series(1, v_count));
    if p_is_new then
        insert into job (id, seq, queue, type, payload, created_at, rank, lane, run_at, headers, timeout_us,
                         max_attempts, max_stalls, min_backoff_us, max_backoff_us)
        select i.id::uuid, i.seq, coalesce(i.queue, p_queues[1]), coalesce(i.type, p_types[1]), i.payload, v_now,
               coalesce(-i.priority, -p_priorities[1], 0), coalesce(i.lane, p_lanes[1], 'any'),
               coalesce(i.run_at, case when i.delay > 0 then after(v_now, i.delay) end), i.headers::json,
               coalesce(i.timeout, p_timeouts[1], 0), coalesce(i.max_attempts, p_max_attempts[1], 0),
               coalesce(i.max_stalls, p_max_stalls[1], 0), i.min_backoff, i.max_backoff
        from unnest(p_ids, v_seqs, p_queues, p_types, p_payloads, p_priorities, p_lanes, p_run_ats, p_delays, p_headers,
                    p_timeouts, p_max_attempts, p_max_stalls, p_min_backoffs, p_max_backoffs)
             as i(id, seq, queue, type, payload, priority, lane, run_at, delay, headers,
                  timeout, max_attempts, max_stalls, min_backoff, max_backoff)
        order by i.id;
        v_stored := v_count;
    else
        insert into job (id, seq, queue, type, payload, created_at, rank, lane, run_at, headers, timeout_us,
                         max_attempts, max_stalls, min_backoff_us, max_backoff_us)
        select i.id::uuid, i.seq, coalesce(i.queue, p_queues[1]), coalesce(i.type, p_types[1]), i.payload, v_now,
               coalesce(-i.priority, -p_priorities[1], 0), coalesce(i.lane, p_lanes[1], 'any'),
               coalesce(i.run_at, case when i.delay > 0 then after(v_now, i.delay) end), i.headers::json,
               coalesce(i.timeout, p_timeouts[1], 0), coalesce(i.max_attempts, p_max_attempts[1], 0),
               coalesce(i.max_stalls, p_max_stalls[1], 0), i.min_backoff, i.max_backoff
        from unnest(p_ids, v_seqs, p_queues, p_types, p_payloads, p_priorities, p_lanes, p_run_ats, p_delays, p_headers,
                    p_timeouts, p_max_attempts, p_max_stalls, p_min_backoffs, p_max_backoffs)
             as i(id, seq, queue, type, payload, priority, lane, run_at, delay, headers,
                  timeout, max_attempts, max_stalls, min_backoff, max_backoff)
        order by i.id
        on conflict (id) do nothing;
        get diagnostics v_stored = row_count;
    end if;

    return query select 0, null::text, 'stored', 0, v_now, 0::bigint;
    if v_stored = v_count and p_run_ats is null and p_delays is null then
        insert into ready (seq, eligible_at, id, rank, queue, lane, line)
        select i.seq, v_now, i.id::uuid, coalesce(-i.priority, -p_priorities[1], 0), coalesce(i.queue, p_queues[1]),
               coalesce(i.lane, p_lanes[1], 'any'),
               coalesce(i.queue, p_queues[1]) || '/' || coalesce(i.lane, p_lanes[1], 'any') || '/'
               || coalesce(i.type, p_types[1])
        from unnest(p_ids, v_seqs, p_queues, p_types, p_priorities, p_lanes) as i(id, seq, queue, type, priority, lane);
    else
        perform line_up_new(p_ids, v_seqs, v_now);
    end if;
    if v_stored < v_count then  -- known ids kept their old seq
        return query
        select i.ord::integer, i.id, 'duplicate', p.version, v_now, 0::bigint
        from unnest(p_ids, v_seqs) with ordinality as i(id, seq, ord)
        cross join lateral (select k as known from job k where k.id = i.id::uuid and k.seq <> i.seq offset 0) j
        cross join lateral stands(j.known) p;
    end if;
    if p_always_wake or exists (select from hungry h where h.queue = any (p_queues)) then
        perform wake(p_queues, p_always_wake);
    end if;
end $$;

-- enqueue_one: the most usual enqueue, of one job without keys that may run at once. Answers when it was stored;
-- null when it was not, because a rate or an alias has to be looked at: enqueue does that. 23505: its id is known.
create function {schema}.enqueue_one(
    p_now timestamptz, p_id text, p_queue text, p_type text, p_payload bytea, p_headers text, p_rank smallint,
    p_lane text, p_timeout bigint, p_max_attempts integer, p_max_stalls integer, p_min_backoff bigint,
    p_max_backoff bigint)
returns timestamptz
language plpgsql security definer
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_id uuid := p_id::uuid;
    v_seq bigint;
begin
    with body as (
        insert into job (id, seq, queue, type, payload, created_at, rank, lane, headers, timeout_us, max_attempts,
                         max_stalls, min_backoff_us, max_backoff_us)
        select v_id, nextval('job_seq'), p_queue, p_type, p_payload, v_now, p_rank, p_lane, p_headers::json, p_timeout,
               p_max_attempts, p_max_stalls, p_min_backoff, p_max_backoff
        where not exists (select from rule r where r.enqueue_count is not null and r.queue in (p_queue, '*'))
          and not exists (select from alias a where a.id = v_id)
        returning seq
    ), line as (
        insert into ready (seq, eligible_at, id, rank, queue, lane, line)
        select b.seq, v_now, v_id, p_rank, p_queue, p_lane, p_queue || '/' || p_lane || '/' || p_type from body b
    ), fed as (  -- as wake does; in here it costs no statements of its own
        delete from hungry where ctid = any (array(
            select h.ctid from hungry h where h.queue = p_queue and exists (select from body) for update skip locked))
        returning pg_notify('taskharbor:' || current_schema(), 'work ' || queue)
    )
    select b.seq into v_seq from body b left join fed on true;
    return case when v_seq is not null then v_now end;
end $$;

-- enqueue_alike: the same for many that differ in id and payload only. What is alike is said once, which saves a
-- tenth of enqueue's work.
create function {schema}.enqueue_alike(
    p_now timestamptz, p_ids uuid[], p_queue text, p_type text, p_payloads bytea[], p_headers text, p_rank smallint,
    p_lane text, p_timeout bigint, p_max_attempts integer, p_max_stalls integer, p_min_backoff bigint,
    p_max_backoff bigint)
returns timestamptz
language plpgsql security definer
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_headers json := p_headers::json;
    v_line text := p_queue || '/' || p_lane || '/' || p_type;
    v_seqs bigint[];
begin
    if exists (select from rule r where r.enqueue_count is not null and r.queue in (p_queue, '*'))
       or exists (select from alias) and exists (
           select from unnest(p_ids) as i(id) cross join lateral (select from alias a where a.id = i.id offset 0) a)
    then
        return null;
    end if;
    v_seqs := array(select nextval('job_seq') from generate_series(1, cardinality(p_ids)));
    insert into job (id, seq, queue, type, payload, created_at, rank, lane, headers, timeout_us, max_attempts,
                     max_stalls, min_backoff_us, max_backoff_us)
    select i.id, i.seq, p_queue, p_type, i.payload, v_now, p_rank, p_lane, v_headers, p_timeout, p_max_attempts,
           p_max_stalls, p_min_backoff, p_max_backoff
    from unnest(p_ids, v_seqs, p_payloads) as i(id, seq, payload) order by i.id;
    insert into ready (seq, eligible_at, id, rank, queue, lane, line)
    select i.seq, v_now, i.id, p_rank, p_queue, p_lane, v_line from unnest(p_ids, v_seqs) as i(id, seq);
    if exists (select from hungry h where h.queue = p_queue) then
        perform wake(array[p_queue]);
    end if;
    return v_now;
end $$;

-- An array with one element for all, as one with an element each.
create function {schema}.each(p_values anyarray, p_count integer) returns anyarray
language sql immutable parallel safe set search_path = {schema}, pg_temp as $$
    select case when cardinality(p_values) = 1 then array_fill(p_values[1], array[p_count]) else p_values end
$$;

-- Put jobs that were just stored where they belong: in line, or among those that come later.
create function {schema}.line_up_new(p_ids text[], p_seqs bigint[], p_now timestamptz) returns void
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    with new as materialized (
        select j.* from unnest(p_ids, p_seqs) as i(id, seq)
        cross join lateral (select * from job k where k.id = i.id::uuid and k.seq = i.seq offset 0) j
    ), now_ready as (
        insert into ready (seq, eligible_at, id, rank, is_timed, queue, lane, line)
        select n.seq, coalesce(n.run_at, p_now), n.id, n.rank, n.run_at is not null, n.queue, n.lane,
               n.queue || '/' || n.lane || '/' || n.type
        from new n where n.run_at is null or n.run_at <= p_now
    )
    insert into place (id, seq, queue, lane, rank, state, eligible_at, run_at, updated_at)
    select n.id, n.seq, n.queue, n.lane, n.rank, 0, n.run_at, n.run_at, p_now
    from new n where n.run_at > p_now;
end $$;

-- The same for jobs that have to be looked at one after the other: keys, idempotency keys, rates.
create function {schema}.enqueue_in_order(
    p_now timestamptz, p_always_wake boolean,
    p_ids text[], p_queues text[], p_types text[], p_payloads bytea[],
    p_headers text[], p_keys bytea[], p_flags text[],
    p_idempotency_keys bytea[], p_priorities smallint[], p_lanes text[],
    p_run_ats timestamptz[], p_delays bigint[], p_timeouts bigint[],
    p_max_attempts integer[], p_max_stalls integer[],
    p_min_backoffs bigint[], p_max_backoffs bigint[])
returns table (o_ord integer, o_id text, o_result text, o_version integer, o_at timestamptz, o_detail bigint)
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz;
    v_refused record;
    v_target uuid;
    v_version integer;
    v_run_at timestamptz;
    v_is_blocked boolean;
    v_there place%rowtype;
begin
    perform pg_advisory_xact_lock(l.id) from (
        select lock_id('key', k.queue, k.key) as id from unnest(p_queues, p_keys) as k(queue, key) where k.key is not null
        union
        select lock_id('idempotency', k.queue, k.key) from unnest(p_queues, p_idempotency_keys) as k(queue, key)
        where k.key is not null
        union
        select lock_id('enqueue', r.queue) from rule r
        where r.enqueue_count is not null and (r.queue = '*' or r.queue = any (p_queues))
        order by 1) l;
    if p_keys is not null then  -- whoever waits or runs under them, in the order of all steps
        perform from (
            select distinct p.id from unnest(p_queues, p_keys) as k(queue, key)
            cross join lateral (
                select q.id from place q where q.queue = k.queue and q.key = k.key and q.key is not null and q.state <= 3
                offset 0) p
            order by p.id) i
        cross join lateral (select q.id from place q where q.id = i.id for update offset 0) p;
    end if;
    v_now := coalesce(p_now, clock_timestamp());

    select * into v_refused from admit(p_ids, p_queues, p_idempotency_keys, v_now);
    if found then
        return query select 0, v_refused.queue, v_refused.result, 0, v_now, v_refused.detail;
        return;
    end if;
    return query select 0, null::text, 'stored', 0, v_now, 0::bigint;

    for i in 1 .. cardinality(p_ids) loop
        -- Known by its id, or by its idempotency key.
        v_target := coalesce((select a.target from alias a where a.id = p_ids[i]::uuid), p_ids[i]::uuid);
        select p.version into v_version from job j cross join lateral stands(j) p where j.id = v_target;
        if not found and p_idempotency_keys[i] is not null then
            select coalesce(a.target, k.job_id), coalesce(p.version, 0) into v_target, v_version
            from idempotency k
            left join alias a on a.id = k.job_id
            left join place p on p.id = coalesce(a.target, k.job_id)  -- who is remembered has a place
            where k.queue = p_queues[i] and k.key = p_idempotency_keys[i]
              -- One that is not over and not there was lost, and keeps nobody out.
              and case when k.ends_at is null then exists (select from job j where j.id = coalesce(a.target, k.job_id))
                       else k.ends_at > v_now end;
        end if;
        if found then
            return query select i, v_target::text, 'duplicate', v_version, v_now, 0::bigint;
            continue;
        end if;

        v_run_at := coalesce(p_run_ats[i], case when p_delays[i] > 0 then after(v_now, p_delays[i]) end);
        v_is_blocked := false;
        if p_keys[i] is not null then
            select * into v_there from place p
            where p.queue = p_queues[i] and p.key = p_keys[i] and p.key is not null and p.state <= 3
              and (p.state = 3) = false for update;
            if found and not exists (select from job j where j.id = v_there.id) then  -- its row was lost
                delete from ready r where r.id = v_there.id and not r.is_plain;
                delete from place p where p.id = v_there.id;
            elsif found then
                v_version := absorb(
                    v_there, coalesce(p_flags[i], '111-'), v_now, v_run_at, p_types[i], p_payloads[i], p_headers[i],
                    coalesce(p_timeouts[i], 0), coalesce(p_priorities[i], 0::smallint), coalesce(p_lanes[i], 'any'),
                    coalesce(p_max_attempts[i], 0), coalesce(p_max_stalls[i], 0), p_min_backoffs[i], p_max_backoffs[i]);
                insert into alias values (p_ids[i]::uuid, v_there.id);
                perform remember(p_queues[i], p_idempotency_keys[i], v_there.id);
                return query select i, v_there.id::text, 'updated', v_version, v_now, 0::bigint;
                continue;
            end if;
            select * into v_there from place p
            where p.queue = p_queues[i] and p.key = p_keys[i] and p.key is not null and p.state <= 3
              and (p.state = 3) = true for update;
            v_is_blocked := found;
            if found and not exists (select from job j where j.id = v_there.id) then
                delete from place p where p.id = v_there.id;
                v_is_blocked := false;
            end if;
        end if;

        insert into job (id, seq, queue, type, payload, created_at, rank, lane, run_at, headers, key, idempotency_key,
                         timeout_us, max_attempts, max_stalls, min_backoff_us, max_backoff_us)
        values (p_ids[i]::uuid, nextval('job_seq'), p_queues[i], p_types[i], p_payloads[i], v_now,
                coalesce(-p_priorities[i], 0), coalesce(p_lanes[i], 'any'), v_run_at, p_headers[i]::json,
                p_keys[i], p_idempotency_keys[i], coalesce(p_timeouts[i], 0), coalesce(p_max_attempts[i], 0),
                coalesce(p_max_stalls[i], 0), p_min_backoffs[i], p_max_backoffs[i])
        on conflict (id) do nothing;
        if not found then  -- somebody else stored the same id this very moment
            return query select i, j.id::text, 'duplicate', p.version, v_now, 0::bigint
                         from job j cross join lateral stands(j) p where j.id = p_ids[i]::uuid;
            continue;
        end if;
        insert into place (id, seq, queue, lane, rank, state, ties, eligible_at, run_at, updated_at, key, flags)
        select j.id, j.seq, j.queue, j.lane, j.rank,
               case when v_is_blocked then 2 when v_run_at > v_now then 0 else 1 end,
               case when j.key is null then 0 else 1 end + case when j.idempotency_key is null then 0 else 2 end,
               coalesce(v_run_at, v_now), v_run_at, v_now, j.key,
               case when v_is_blocked then coalesce(p_flags[i], '111-') end
        from job j where j.id = p_ids[i]::uuid;
        perform line_up(p_ids[i]::uuid);
        perform remember(p_queues[i], p_idempotency_keys[i], p_ids[i]::uuid);
        if v_is_blocked then
            return query select i, p_ids[i], 'blocked', 1, v_now, 0::bigint;
        end if;
    end loop;
    perform wake(p_queues, p_always_wake);
end $$;

-- Spend the enqueue rates for the jobs of a call that are new; one row when a rate stands against it.
create function {schema}.admit(p_ids text[], p_queues text[], p_keys bytea[], p_now timestamptz)
returns table (queue text, result text, detail bigint)
language plpgsql set search_path = {schema}, pg_temp as $$
#variable_conflict use_column
declare
    v_limit record;
    v_wait bigint;
    v_limited text;
    v_until bigint;
    v_spends text[] := '{}';
begin
    if not exists (select from rule r where r.enqueue_count is not null) then
        return;
    end if;
    for v_limit in
        with new as (
            select distinct on (i.id) i.queue, i.key
            from unnest(p_ids, p_queues, p_keys) with ordinality as i(id, queue, key, ord)
            where not exists (select from job j where j.id = i.id::uuid offset 0)
              and not exists (select from alias a where a.id = i.id::uuid offset 0)
              and not exists (select from idempotency k where k.queue = i.queue and k.key = i.key
                              and (k.ends_at is null or k.ends_at > p_now) offset 0)
            order by i.id, i.ord
        ), one as (
            select n.queue from new n where n.key is null
            union all
            select d.queue from (select distinct n.queue, n.key from new n where n.key is not null) d
        ), wanted as (
            select o.queue as name, count(*)::integer as wanted from one o group by o.queue
            union all
            select '*', count(*)::integer from one having count(*) > 0
        )
        select w.name, w.wanted, r.enqueue_count as count, r.enqueue_us as us
        from wanted w join rule r on r.queue = w.name where r.enqueue_count is not null
        order by w.name = '*', w.name
    loop
        if v_limit.wanted > v_limit.count then
            return query select v_limit.name, 'never', v_limit.count::bigint;
            return;
        end if;
        v_wait := budget_wait('enqueue', v_limit.name, v_limit.count, v_limit.us, v_limit.wanted, p_now);
        if v_wait > 0 and v_limited is null then
            v_limited := v_limit.name;
            v_until := v_wait;
        end if;
        v_spends := v_spends || array[v_limit.name, v_limit.us::text, v_limit.wanted::text];
    end loop;
    if v_limited is not null then  -- what can never pass was told first
        return query select v_limited, 'limited', v_until;
        return;
    end if;
    for i in 0 .. cardinality(v_spends) / 3 - 1 loop
        perform budget_spend('enqueue', v_spends[3 * i + 1], v_spends[3 * i + 2]::bigint,
                             v_spends[3 * i + 3]::integer, p_now);
    end loop;
end $$;

-- Let an idempotency key point to a job.
create function {schema}.remember(p_queue text, p_key bytea, p_job uuid) returns void
language plpgsql set search_path = {schema}, pg_temp as $$
begin
    if p_key is not null then
        insert into idempotency values (p_queue, p_key, p_job, null)
        on conflict (queue, key) do update set job_id = excluded.job_id, ends_at = null;
        update place set ties = ties | 2 where id = p_job and ties & 2 = 0;
    end if;
end $$;

-- Apply an enqueue to the waiting or blocked job of its key; the new version.
create function {schema}.absorb(
    p_there {schema}.place, p_flags text, p_now timestamptz, p_run_at timestamptz, p_type text, p_payload bytea,
    p_headers text, p_timeout bigint, p_priority smallint, p_lane text, p_max_attempts integer,
    p_max_stalls integer, p_min_backoff bigint, p_max_backoff bigint)
returns integer
language plpgsql set search_path = {schema}, pg_temp as $$
declare
    v_data boolean := substr(p_flags, 1, 1) = '1';
    v_retry boolean := substr(p_flags, 3, 1) = '1';
    v_reset boolean := resets_counts(p_flags) = '1';
    v_run_at timestamptz := chosen_run_at(substr(p_flags, 2, 1), p_there.run_at, p_run_at, p_now);
begin
    update job j set
        type = case when v_data then p_type else j.type end,
        payload = case when v_data then p_payload else j.payload end,
        headers = case when v_data then p_headers::json else j.headers end,
        timeout_us = case when v_data then p_timeout else j.timeout_us end,
        max_attempts = case when v_retry then p_max_attempts else j.max_attempts end,
        max_stalls = case when v_retry then p_max_stalls else j.max_stalls end,
        min_backoff_us = case when v_retry then p_min_backoff else j.min_backoff_us end,
        max_backoff_us = case when v_retry then p_max_backoff else j.max_backoff_us end
    where j.id = p_there.id and (v_data or v_retry);
    update place p set
        version = p.version + 1,
        updated_at = p_now,
        run_at = v_run_at,
        eligible_at = coalesce(v_run_at, (select j.created_at from job j where j.id = p.id)),
        state = case when p.state = 2 then 2 when v_run_at > p_now then 0 else 1 end,
        rank = case when v_data then -p_priority else p.rank end,
        lane = case when v_data then p_lane else p.lane end,
        attempts = case when v_reset then 0 else p.attempts end,
        stalls = case when v_reset then 0 else p.stalls end,
        -- Two enqueues that met in one blocked job: booleans or-ed, run_at the last.
        flags = case when p.state = 2 then
            greatest(substr(p.flags, 1, 1), substr(p_flags, 1, 1)) || substr(p_flags, 2, 1)
            || greatest(substr(p.flags, 3, 1), substr(p_flags, 3, 1))
            || greatest(resets_counts(p.flags), resets_counts(p_flags)) end
    where p.id = p_there.id;
    perform line_up(p_there.id);
    return p_there.version + 1;
end $$;

create function {schema}.resets_counts(p_flags text) returns text
language sql immutable set search_path = {schema}, pg_temp as $$
    select case substr(p_flags, 4, 1) when '-' then substr(p_flags, 1, 1) else substr(p_flags, 4, 1) end
$$;

create function {schema}.chosen_run_at(p_rule text, p_kept timestamptz, p_new timestamptz, p_now timestamptz)
returns timestamptz language sql immutable set search_path = {schema}, pg_temp as $$
    select case p_rule
        when '1' then p_new
        when '0' then p_kept
        when 'L' then case when coalesce(p_new, p_now) > coalesce(p_kept, p_now) then p_new else p_kept end
        else case when coalesce(p_new, p_now) < coalesce(p_kept, p_now) then p_new else p_kept end
    end
$$;

-- enqueue_job: one job, for psql, triggers and other languages. The payload is the job's arguments as
-- JSON; answers the id of the job that now carries it. Raises when a rate limit stands against it.
create function {schema}.enqueue_job(
    p_type text, p_payload json default '{}', p_queue text default 'default', p_run_at timestamptz default null,
    p_key text default null, p_idempotency_key text default null, p_priority integer default 0,
    p_max_attempts integer default 0, p_max_stalls integer default 3, p_requires text default 'any',
    p_id uuid default null)
returns uuid
language plpgsql security definer set search_path = {schema}, pg_temp as $$
declare
    v_id uuid := coalesce(p_id, new_id());
    v_answer record;
begin
    if p_type !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$' or p_queue !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$'
       or p_requires !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$' then
        raise exception 'type, queue and requires are names: letters, digits, ".", "_" and "-"' using errcode = '22023';
    end if;
    if p_priority not between -100 and 100 or octet_length(p_key) not between 1 and 255
       or octet_length(p_idempotency_key) not between 1 and 255 or octet_length(p_payload::text) > 1048576
       or p_max_attempts not between 0 and 1000000 or p_max_stalls not between 0 and 1000000 then
        raise exception 'priority is -100 to 100, keys are 1 to 255 bytes, the payload is at most 1 MiB' using errcode = '22023';
    end if;
    for v_answer in select * from enqueue(
        null, true, false, array[v_id::text], array[p_queue], array[p_type], array[convert_to(p_payload::text, 'UTF8')],
        null, case when p_key is not null then array[convert_to(p_key, 'UTF8')] end, null,
        case when p_idempotency_key is not null then array[convert_to(p_idempotency_key, 'UTF8')] end,
        array[p_priority::smallint], array[p_requires], array[p_run_at], null, null,
        array[p_max_attempts], array[p_max_stalls]) order by o_ord
    loop
        if v_answer.o_result in ('limited', 'never') then
            raise exception 'queue % is over its enqueue rate; nothing was stored', v_answer.o_id using errcode = '53400';
        end if;
        if v_answer.o_ord = 1 then
            v_id := v_answer.o_id::uuid;
        end if;
    end loop;
    return v_id;
end $$;

-- A UUIDv7: the millisecond it was made in, then chance.
create function {schema}.new_id() returns uuid
language sql volatile set search_path = {schema}, pg_temp as $$
    select (lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
            || '7' || substr(r, 2, 3) || to_hex((get_byte(decode(substr(r, 5, 2), 'hex'), 0) & 63) | 128) || substr(r, 7, 14))::uuid
    from (select replace(gen_random_uuid()::text, '-', '') as r) s
$$;
