-- enqueue: store jobs of any kind, all or none. The rules are those of `enqueue_one` in drivers/lifecycle.py.
--   An array may be null where every job has the default, and p_queues, p_types, p_priorities, p_lanes, p_timeouts,
--   p_max_attempts and p_max_stalls may have one element for all.
--   p_always_wake: send a notification whether or not somebody waits for one.
--   p_is_new: trust that no id is known, which is cheaper; if one is, this fails with 23505.
--   p_flags: per job, what it may change in the waiting job of its key: four signs, for data (1, 0),
--   run_at (1, 0, L if later, E if earlier), retry (1, 0) and reset_counts (1, 0, - as data).
--   Returns a first row with ord 0 and the deciding instant; its result is 'stored', or 'limited' or 'never' when a
--   rate of queue o_id refuses it (o_detail: microseconds to wait, or the limit) and nothing was stored. Then a row
--   for every job that was not simply created.
create or replace function {schema}.enqueue(
    p_now timestamptz, p_always_wake boolean, p_is_new boolean,
    p_ids uuid[], p_queues text[], p_types text[], p_payloads bytea[],
    p_headers text[] default null, p_keys bytea[] default null, p_flags text[] default null,
    p_idempotency_keys bytea[] default null, p_priorities smallint[] default null, p_lanes text[] default null,
    p_run_ats timestamptz[] default null, p_delays bigint[] default null, p_timeouts bigint[] default null,
    p_max_attempts integer[] default null, p_max_stalls integer[] default null,
    p_min_backoffs bigint[] default null, p_max_backoffs bigint[] default null)
returns table (o_ord integer, o_id text, o_result text, o_version integer, o_at timestamptz, o_detail bigint)
language plpgsql security definer set search_path = {schema}, pg_temp {plan} set enable_hashjoin = on as $$
declare
    v_now timestamptz;
    v_count integer := cardinality(p_ids);
    v_stored integer;
    v_is_one_group boolean;
    v_lined integer;
    v_seqs bigint[];
    v_skip boolean[];     -- per job: it gets no record of its own
    v_blocked boolean[];  -- per job: its record is blocked behind the running job of its key
    v_into uuid[];        -- per job without a record: the job that carries it
    v_found uuid[];       -- per job: the one that its id led to
    v_known boolean[];
    v_absorbs integer[];  -- the ords that are absorbed
    v_once record;
    v_keys record;
    v_runs uuid[] := '{}';
    v_new record;
    v_refused record;
begin
    if exists (select from queue_settings r
               where r.enqueue_count is not null and (r.queue = '*' or r.queue = any (p_queues)))
    then
        perform pg_advisory_xact_lock(l.id) from (
            select lock_id('enqueue', r.queue) as id from queue_settings r
            where r.enqueue_count is not null and (r.queue = '*' or r.queue = any (p_queues)) order by 1) l;
        v_now := coalesce(p_now, clock_timestamp());
        select * into v_refused from admit(p_ids, each(p_queues, v_count), p_idempotency_keys, v_now);
        if found then
            return query select 0, v_refused.queue, v_refused.result, 0, v_now, v_refused.detail;
            return;
        end if;
    end if;

    if not p_is_new then
        select array_agg(k.id is not null or i.no > 1 order by i.ord), array_agg(k.id order by i.ord) into v_skip, v_into
        from (select u.id, u.ord, row_number() over (partition by u.id order by u.ord) as no
              from unnest(p_ids) with ordinality as u(id, ord)) i
        left join lateral (select b.target from alias b where b.id = i.id offset 0) a on true
        left join lateral (select j.id from job j where j.id = coalesce(a.target, i.id) offset 0) k on true;
        v_found := v_into;
    elsif exists (select from alias) and exists (
        select from unnest(p_ids) as i(id) cross join lateral (select from alias a where a.id = i.id offset 0) a)
    then
        raise exception 'an id is known' using errcode = '23505';
    end if;

    if p_idempotency_keys is not null then
        if p_keys is not null then  -- keys come before idempotency keys in the order of locks
            v_known := v_skip;
            insert into job_key as k (queue, key, holder)
            select distinct on (q.queue, q.key) q.queue, q.key, q.id from (
                select coalesce(i.queue, p_queues[1]) collate "C" as queue, i.key, i.id, i.ord
                from unnest(p_ids, p_queues, p_keys, v_skip) with ordinality as i(id, queue, key, skip, ord)
                where i.key is not null and i.skip is not true) q
            order by q.queue, q.key, q.ord
            on conflict (queue, key) do update set holder = k.holder;
        end if;
        -- The first job of each key in this call. To lock a row that is there, it is written as it is.
        with first as (
            select distinct on (q.queue, q.key) q.queue, q.key, q.id from (
                select coalesce(i.queue, p_queues[1]) collate "C" as queue, i.key, i.id, i.ord
                from unnest(p_ids, p_queues, p_idempotency_keys, v_skip) with ordinality as i(id, queue, key, skip, ord)
                where i.key is not null and i.skip is not true) q
            order by q.queue, q.key, q.ord
        ), locked as (
            insert into idempotency as k (queue, key, job_id) select f.queue, f.key, f.id from first f order by f.queue, f.key
            on conflict (queue, key) do update set job_id = k.job_id returning k.queue, k.key, k.job_id, k.ends_at
        )
        select array_agg(l.queue) as queues, array_agg(l.key) as keys, array_agg(f.id) as firsts,
               array_agg(coalesce(a.target, l.job_id)) as jobs, array_agg(l.ends_at) as ends
        into v_once from locked l join first f on f.queue = l.queue and f.key = l.key
        left join lateral (select b.target from alias b where b.id = l.job_id offset 0) a on true;
        v_now := coalesce(p_now, clock_timestamp());
        -- One that has expired, or whose job was lost, is free. One that still has an end leads to a job that is over, be
        -- it this very one, forgotten since.
        with free as (
            select i.queue, i.key, i.first
            from unnest(v_once.queues, v_once.keys, v_once.firsts, v_once.jobs, v_once.ends) as i(queue, key, first, job, ends)
            where case when i.ends is null
                then i.job <> i.first and not exists (select from job j where j.id = i.job offset 0) else i.ends <= v_now end
        ), taken as (
            update idempotency k set job_id = f.first, ends_at = null from free f
            where (k.queue, k.key) >= (f.queue, f.key) and (k.queue, k.key) <= (f.queue, f.key)
        )
        select array_agg(coalesce(o.job <> i.id or o.is_over, coalesce(i.skip, false)) order by i.ord),
               array_agg(coalesce(i.into_id, case when o.job <> i.id or o.is_over then o.job end) order by i.ord)
        into v_skip, v_into
        from unnest(p_ids, p_queues, p_idempotency_keys, v_skip, v_into) with ordinality as i(id, queue, key, skip, into_id, ord)
        left join (
            select k.queue, k.key, case when f.first is not null then k.first else k.job end as job,
                   f.first is null and k.ends is not null as is_over
            from unnest(v_once.queues, v_once.keys, v_once.firsts, v_once.jobs, v_once.ends) as k(queue, key, first, job, ends)
            left join free f on f.queue = k.queue and f.key = k.key) o
          on o.queue = coalesce(i.queue, p_queues[1]) and o.key = i.key and i.skip is not true;
        if p_keys is not null then  -- a job that is known by now holds no key
            delete from job_key k
            using unnest(p_ids, p_queues, p_keys, v_skip, v_known) as i(id, queue, key, skip, known)
            where (k.queue, k.key) >= (coalesce(i.queue, p_queues[1]), i.key)
              and (k.queue, k.key) <= (coalesce(i.queue, p_queues[1]), i.key)
              and i.skip and i.known is not true and k.holder = i.id;
        end if;
    end if;

    v_seqs := array(select nextval('job_seq') from generate_series(1, v_count));
    if p_keys is not null then
        -- The first job of each key in this call locks it, or is its holder.
        with first as (
            select distinct on (q.queue, q.key) q.queue, q.key, q.id, q.seq from (
                select coalesce(i.queue, p_queues[1]) collate "C" as queue, i.key, i.id, i.seq, i.ord
                from unnest(p_ids, p_queues, p_keys, v_seqs, v_skip) with ordinality as i(id, queue, key, seq, skip, ord)
                where i.key is not null and i.skip is not true) q
            order by q.queue, q.key, q.ord
        ), locked as (
            insert into job_key as k (queue, key, holder) select f.queue, f.key, f.id from first f order by f.queue, f.key
            on conflict (queue, key) do update set holder = k.holder returning k.queue, k.key, k.holder, k.next
        )
        select array_agg(l.queue) as queues, array_agg(l.key) as keys, array_agg(l.holder) as holders,
               array_agg(l.next) as nexts, array_agg(f.id) as firsts, array_agg(f.seq) as seqs,
               array_agg(l.holder) filter (where l.holder <> f.id) as others
        into v_keys from locked l join first f on f.queue = l.queue and f.key = l.key;
        if v_keys.others is not null then
            -- Does the holder wait, or run? A claim that takes it this moment is waited for; then it is looked at again.
            perform from unnest(v_keys.others) as i(id)
            cross join lateral (select * from job_state s where s.id = i.id and s.state = 0 offset 0) s
            cross join lateral (
                select from waiting w where w.queue = s.queue and w.lane = s.lane and w.rank = s.rank
                and w.eligible_at = s.eligible_at and w.seq = s.seq for update offset 0) w;
            if exists (
                select from unnest(v_keys.holders, v_keys.nexts, v_keys.firsts) as i(holder, next, first)
                where i.holder <> i.first and not exists (select from job j where j.id = i.holder offset 0)
                   or i.next is not null and not exists (select from job j where j.id = i.next offset 0))
            then
                select array_agg(r.holder), array_agg(r.next) into v_keys.holders, v_keys.nexts
                from unnest(v_keys.queues, v_keys.keys, v_keys.firsts) as i(queue, key, first)
                cross join lateral repair_key(i.queue, i.key, i.first) r(holder, next);
            end if;
            v_runs := array(
                select s.id from unnest(v_keys.holders, v_keys.firsts) as i(id, first)
                cross join lateral (select k.id from job_state k where k.id = i.id and k.state = 3 offset 0) s
                where i.id <> i.first);
            update job_key k set next = i.first, next_seq = i.seq
            from unnest(v_keys.queues, v_keys.keys, v_keys.holders, v_keys.nexts, v_keys.firsts, v_keys.seqs)
                 as i(queue, key, holder, next, first, seq)
            where (k.queue, k.key) >= (i.queue, i.key) and (k.queue, k.key) <= (i.queue, i.key) and i.next is null and i.holder = any (v_runs);
        end if;
        with target as (  -- who carries the jobs of a key
            select i.queue, i.key, i.holder,
                   case when i.next is not null then i.next when i.holder = any (v_runs) then i.first else i.holder end as id
            from unnest(v_keys.queues, v_keys.keys, v_keys.holders, v_keys.nexts, v_keys.firsts)
                 as i(queue, key, holder, next, first)
        )
        select array_agg(coalesce(t.id <> i.id, coalesce(i.skip, false)) order by i.ord),
               array_agg(coalesce(t.id = i.id and t.holder <> i.id, false) order by i.ord),
               array_agg(coalesce(i.into_id, case when t.id <> i.id then t.id end) order by i.ord),
               array_agg(i.ord::integer order by i.ord) filter (where t.id <> i.id)
        into v_skip, v_blocked, v_into, v_absorbs
        from unnest(p_ids, p_queues, p_keys, v_skip, v_into) with ordinality as i(id, queue, key, skip, into_id, ord)
        left join target t on t.queue = coalesce(i.queue, p_queues[1]) and t.key = i.key and i.skip is not true;
    end if;

    v_now := coalesce(p_now, clock_timestamp());
    return query select 0, null::text, 'stored', 0, v_now, 0::bigint;
    if p_is_new then  -- the same twice: to look for a conflict costs a tenth
        insert into job (id, seq, queue, type, payload, created_at, headers, idempotency_key, timeout_us, max_attempts,
                         max_stalls, min_backoff_us, max_backoff_us)
        select i.id, i.seq, coalesce(i.queue, p_queues[1]), coalesce(i.type, p_types[1]), i.payload, v_now, i.headers::json,
               i.once, coalesce(i.timeout, p_timeouts[1], 0), coalesce(i.max_attempts, p_max_attempts[1], 0),
               coalesce(i.max_stalls, p_max_stalls[1], 0), i.min_backoff, i.max_backoff
        from (select unnest(p_ids) as id, unnest(v_seqs) as seq, unnest(p_queues) as queue, unnest(p_types) as type,
                     unnest(p_payloads) as payload, unnest(p_headers) as headers, unnest(p_idempotency_keys) as once,
                     unnest(p_timeouts) as timeout, unnest(p_max_attempts) as max_attempts, unnest(p_max_stalls) as max_stalls,
                     unnest(p_min_backoffs) as min_backoff, unnest(p_max_backoffs) as max_backoff, unnest(v_skip) as skip) i
        where i.skip is not true order by i.id;
    else
        insert into job (id, seq, queue, type, payload, created_at, headers, idempotency_key, timeout_us, max_attempts,
                         max_stalls, min_backoff_us, max_backoff_us)
        select i.id, i.seq, coalesce(i.queue, p_queues[1]), coalesce(i.type, p_types[1]), i.payload, v_now, i.headers::json,
               i.once, coalesce(i.timeout, p_timeouts[1], 0), coalesce(i.max_attempts, p_max_attempts[1], 0),
               coalesce(i.max_stalls, p_max_stalls[1], 0), i.min_backoff, i.max_backoff
        from unnest(p_ids, v_seqs, p_queues, p_types, p_payloads, p_headers, p_idempotency_keys, p_timeouts, p_max_attempts,
                    p_max_stalls, p_min_backoffs, p_max_backoffs, v_skip)
             as i(id, seq, queue, type, payload, headers, once, timeout, max_attempts, max_stalls, min_backoff, max_backoff, skip)
        where i.skip is not true order by i.id
        on conflict (id) do nothing;
    end if;
    get diagnostics v_stored = row_count;
    if v_stored < v_count - coalesce(cardinality(array_positions(v_skip, true)), 0) then
        -- Another call stored the same id this moment. Its keys may lead elsewhere by now: begin again.
        if p_keys is not null or p_idempotency_keys is not null then
            raise exception 'an id is known' using errcode = '40001';
        end if;
        select array_agg(coalesce(i.skip, false) or j.id is null order by i.ord),
               array_agg(coalesce(i.into_id, case when j.id is null then i.id end) order by i.ord) into v_skip, v_into
        from unnest(p_ids, v_seqs, v_skip, v_into) with ordinality as i(id, seq, skip, into_id, ord)
        left join lateral (select k.id from job k where k.id = i.id and k.seq = i.seq offset 0) j on true;
    end if;
    insert into job_state (id, seq, eligible_at, updated_at, rank, state, link_flags, is_timed, queue, lane, key, update_flags)
    select i.id, i.seq, coalesce(i.run_at, case when i.delay > 0 then after(v_now, i.delay) end, v_now), v_now,
           coalesce(-i.priority, -p_priorities[1], 0), case when i.blocked then 2 else 0 end,
           case when i.key is null then 0 else 1 end + case when i.once is null then 0 else 2 end,
           i.run_at is not null or coalesce(i.delay > 0, false), coalesce(i.queue, p_queues[1]),
           coalesce(i.lane, p_lanes[1], 'any'), i.key, case when i.blocked then coalesce(i.flags, '111-') end
    from (select unnest(p_ids) as id, unnest(v_seqs) as seq, unnest(p_run_ats) as run_at, unnest(p_delays) as delay,
                 unnest(p_priorities) as priority, unnest(v_blocked) as blocked, unnest(p_keys) as key,
                 unnest(p_idempotency_keys) as once, unnest(p_queues) as queue, unnest(p_lanes) as lane,
                 unnest(p_flags) as flags, unnest(v_skip) as skip) i
    where i.skip is not true;
    -- Nearly always all that waits is one group of the tallies.
    v_is_one_group := p_run_ats is null and p_delays is null and cardinality(p_queues) = 1
                      and coalesce(cardinality(p_lanes), 1) = 1 and coalesce(cardinality(p_priorities), 1) = 1;
    v_lined := v_count - coalesce(cardinality(array_positions(v_skip, true)), 0) - coalesce(cardinality(array_positions(v_blocked, true)), 0);
    with line as (
        insert into waiting (seq, eligible_at, id, rank, is_timed, queue, lane, line)
        select i.seq, coalesce(i.run_at, case when i.delay > 0 then after(v_now, i.delay) end, v_now), i.id,
               coalesce(-i.priority, -p_priorities[1], 0), i.run_at is not null or coalesce(i.delay > 0, false),
               coalesce(i.queue, p_queues[1]), coalesce(i.lane, p_lanes[1], 'any'),
               coalesce(i.queue, p_queues[1]) || '/' || coalesce(i.lane, p_lanes[1], 'any') || '/' || coalesce(i.type, p_types[1])
        from (select unnest(p_ids) as id, unnest(v_seqs) as seq, unnest(p_run_ats) as run_at, unnest(p_delays) as delay,
                     unnest(p_priorities) as priority, unnest(v_blocked) as blocked, unnest(p_queues) as queue,
                     unnest(p_lanes) as lane, unnest(p_types) as type, unnest(v_skip) as skip) i
        where i.skip is not true and i.blocked is not true
    )
    insert into tally_change (queue, lane, rank, slice, change)
    select p_queues[1], coalesce(p_lanes[1], 'any'), coalesce(-p_priorities[1], 0), '-infinity', v_lined
    where v_is_one_group and v_lined > 0
    union all
    select coalesce(i.queue, p_queues[1]), coalesce(i.lane, p_lanes[1], 'any'), coalesce(-i.priority, -p_priorities[1], 0),
           case when i.run_at is not null then slice_of(i.run_at) when i.delay > 0 then slice_of(after(v_now, i.delay))
                else '-infinity' end, count(*)
    from unnest(p_ids, p_run_ats, p_delays, p_priorities, p_queues, p_lanes, v_blocked, v_skip)
         as i(id, run_at, delay, priority, queue, lane, blocked, skip)
    where not v_is_one_group and i.skip is not true and i.blocked is not true group by 1, 2, 3, 4;
    if not p_always_wake and random() < 0.001 then  -- never in a transaction of the caller's, which may go on for long
        perform fold_tallies();
    end if;
    if p_always_wake or exists (select from idle_queue q where q.queue = any (p_queues)) then
        perform wake(p_queues, p_always_wake);
    end if;

    if v_blocked is not null then
        return query select i.ord::integer, i.id::text, 'blocked', 1, v_now, 0::bigint
        from unnest(p_ids, v_blocked) with ordinality as i(id, blocked, ord) where i.blocked;
    end if;
    if v_absorbs is not null then  -- in list order
        for v_new in
            select i.* from unnest(p_ids, p_queues, p_types, p_payloads, p_headers, p_flags, p_idempotency_keys, p_priorities,
                                   p_lanes, p_run_ats, p_delays, p_timeouts, p_max_attempts, p_max_stalls, p_min_backoffs,
                                   p_max_backoffs, v_into)
                 with ordinality as i(id, queue, type, payload, headers, flags, once, priority, lane, run_at, delay, timeout,
                                      max_attempts, max_stalls, min_backoff, max_backoff, into_id, ord)
            join unnest(v_absorbs) as a(ord) on a.ord = i.ord order by i.ord
        loop
            v_stored := absorb(
                v_new.into_id, coalesce(v_new.flags, '111-'), v_now,
                coalesce(v_new.run_at, case when v_new.delay > 0 then after(v_now, v_new.delay) end),
                coalesce(v_new.type, p_types[1]), v_new.payload, v_new.headers, coalesce(v_new.timeout, p_timeouts[1], 0),
                coalesce(v_new.priority, p_priorities[1], 0::smallint), coalesce(v_new.lane, p_lanes[1], 'any'),
                coalesce(v_new.max_attempts, p_max_attempts[1], 0), coalesce(v_new.max_stalls, p_max_stalls[1], 0),
                v_new.min_backoff, v_new.max_backoff);
            insert into alias values (v_new.id, v_new.into_id);
            if v_new.once is not null then
                update idempotency set job_id = v_new.into_id
                where queue = coalesce(v_new.queue, p_queues[1]) and key = v_new.once and job_id = v_new.id;
                update job_state set link_flags = link_flags | 2 where id = v_new.into_id and link_flags & 2 = 0;
            end if;
            return query select v_new.ord::integer, v_new.into_id::text, 'updated', v_stored, v_now, 0::bigint;
        end loop;
    end if;
    if true = any (v_skip) then  -- what is neither stored nor absorbed is known
        o_result := 'duplicate';
        o_at := v_now;
        o_detail := 0;
        for o_ord, o_id, o_version in
            select i.ord, t.id,
                   -- As it was when this job came: each later one that the same job absorbed has added 1.
                   s.version - (select count(*) from unnest(v_absorbs) as a(ord) where a.ord > i.ord and v_into[a.ord] = t.id)
            from unnest(p_ids, v_into, v_skip) with ordinality as i(id, into_id, skip, ord)
            -- An id that comes twice, and a job of an idempotency key that was absorbed in this very call.
            cross join lateral (select coalesce(i.into_id, v_into[array_position(p_ids, i.id)], i.id) as id) f
            left join lateral (select b.target from alias b where b.id = f.id offset 0) a on true
            cross join lateral (select coalesce(a.target, f.id) as id) t
            left join lateral (select k.version from job_state k where k.id = t.id offset 0) s on true
            where i.skip and (v_absorbs is null or i.ord <> all (v_absorbs))
        loop
            if o_version is null and v_found[o_ord] is not null then  -- it was deleted since it was found: begin again
                raise exception 'a job was deleted' using errcode = '40001';
            end if;
            o_version := coalesce(o_version, 0);
            return next;
        end loop;
    end if;
end $$;
