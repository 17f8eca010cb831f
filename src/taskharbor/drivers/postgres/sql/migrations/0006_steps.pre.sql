-- The rarer steps: they lock what takes part, the driver decides about the records, and writes them back.
--
-- THE ORDER OF LOCKS. Whoever waits for a lock may hold only such as stand above it in this list, and of the same
-- kind only smaller ones. So nobody ever waits crosswise, and the server finds no deadlocks: tests count them.
--
--   1. advisory locks, by their number: the settings of a queue; keys, idempotency keys and enqueue rates
--   2. rows of `job` and `alias` that an enqueue writes, by id
--   3. rows of `held`, by (token, no)
--   4. rows of `ready`, by the id of their job
--   5. rows of `done`, by (queue, block, no)
--   6. rows of `place`, by id
--   7. rows of `hungry`, by queue
--
-- A gate (the advisory lock of a claim under a limit, or of a worker with a rate) is waited for with empty hands: a
-- claim is a statement of its own, and one that has just settled something only tries. Whoever is through a gate waits
-- for nothing but 7.
-- A claim, a promotion, a sweep and a prune wait for no row at all: what somebody else has locked, they leave out.
-- A step that finds, with its locks in hand, that a job has moved lets go of all of them and begins anew.
-- The instant of a step is read when its locks are held, so that it lies behind everything it waited for.

-- lock_jobs: lock these jobs, what shares their keys, and the copies and originals tied to them.
--   An alias locks the job it stands for. All of them have places of their own afterwards. p_tokens: of their leases,
--   where they are known. Finds every job that exists, whatever moves it meanwhile.
create function {schema}.lock_jobs(p_ids text[], p_tokens text[] default null) returns table (o_id uuid)
language plpgsql
set search_path = {schema}, pg_temp
as $$
declare
    v_locked uuid[];
begin
    for v_try in 1 .. 1000 loop
        begin
            v_locked := locked_if_still(p_ids, case when v_try = 1 then p_tokens end);
            exit;
        exception when sqlstate 'TH001' then  -- every lock since `begin` is released
            v_locked := null;
        end;
    end loop;
    if v_locked is null then
        raise exception 'jobs that never stand still' using errcode = '40001';
    end if;
    return query select i.id from unnest(v_locked) as i(id);
end $$;

-- locked_jobs: lock_jobs, and all that a step needs to know then, in one answer: on a slow line every further question
-- would keep others waiting for these locks. First a row with the deciding instant, the aliases among the ids and
-- every rule; then a row for each job.
create function {schema}.locked_jobs(p_ids text[], p_tokens text[], p_now timestamptz)
returns table (
    o_place {schema}.place, o_job {schema}.job, o_at timestamptz, o_alias_ids text[], o_alias_targets text[],
    o_rule_queues text[], o_rule_settings text[])
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_locked uuid[] := array(select l.o_id from lock_jobs(p_ids, p_tokens) l);
begin
    o_at := coalesce(p_now, clock_timestamp());
    select array_agg(b.id::text), array_agg(b.target::text) into o_alias_ids, o_alias_targets
    from unnest(p_ids) as i(given)
    cross join lateral (select * from alias a where a.id = i.given::uuid offset 0) b;
    select array_agg(r.queue), array_agg(r.settings::text) into o_rule_queues, o_rule_settings from rule r;
    return next;
    return query
    select p.place, j.job, null::timestamptz, null::text[], null::text[], null::text[], null::text[]
    from unnest(v_locked) as i(id)
    cross join lateral (select q as place from place q where q.id = i.id offset 0) p
    cross join lateral (select k as job from job k where k.id = i.id offset 0) j;
end $$;

-- One try of lock_jobs. TH001: a job has moved while we waited for a lock.
create function {schema}.locked_if_still(p_ids text[], p_tokens text[]) returns uuid[]
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_ids uuid[] := meant(p_ids);
    v_wanted uuid[];
    v_locked uuid[];
begin
    perform pg_advisory_xact_lock(l.id) from (
        select distinct lock_id('key', p.queue, p.key) as id from unnest(v_ids) as i(id)
        cross join lateral (select * from place q where q.id = i.id offset 0) p
        where p.key is not null order by 1) l;
    perform unpack(v_ids, p_tokens);
    v_wanted := with_ties(v_ids);
    v_locked := array(
        select p.id from unnest(v_wanted) as i(id)
        cross join lateral (select q.id from place q where q.id = i.id for update offset 0) p);
    if meant(p_ids) <> v_ids or with_ties(v_ids) <> v_wanted or exists (
        select from unnest(v_wanted) as i(id)
        cross join lateral (select from job k where k.id = i.id offset 0) j
        where i.id <> all (v_locked))
    then
        raise exception 'a job has moved' using errcode = 'TH001';
    end if;
    return v_locked;
end $$;

-- The jobs that ids stand for, one each.
create function {schema}.meant(p_ids text[]) returns uuid[]
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return array(
        select coalesce(a.target, i.id::uuid) from unnest(p_ids) with ordinality as i(id, ord)
        left join lateral (select b.target from alias b where b.id = i.id::uuid offset 0) a on true
        order by i.ord);
end $$;

-- These jobs and every other that a step of one of them may concern, by id.
create function {schema}.with_ties(p_ids uuid[]) returns uuid[]
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return array(
        select i.id from unnest(p_ids) as i(id)
        union
        select t.o_tied from ties_of(p_ids) t
        order by 1);
end $$;

-- Per job what is tied to it: its original, the copies beside it, and who waits or runs under its key.
create function {schema}.ties_of(p_ids uuid[]) returns table (o_id uuid, o_tied uuid)
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    select i.id, t.id from unnest(p_ids) as i(id)
    cross join lateral (select k.speculates_on, k.queue, k.key from job k where k.id = i.id offset 0) j
    cross join lateral (
        (select o.id from job o where o.id = j.speculates_on offset 0)
        union all
        (select c.id from job c where c.speculates_on = coalesce(j.speculates_on, i.id) offset 0)
        union all
        (select o.id from place o where j.key is not null and o.queue = j.queue and o.key = j.key
         and o.key is not null and o.state <= 3 offset 0)) t;
end $$;

-- pick_expired: the oldest leases that have run out, locked with all that is tied to them. Those that somebody else
-- deals with are left out: a sweep waits for nobody.
create function {schema}.pick_expired(p_now timestamptz, p_queues text[], p_limit integer)
returns table (o_id uuid)
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_queues text[] := p_queues;
    v_ids uuid[];
    v_tied uuid[];
    v_left_out uuid[];
begin
    if v_queues is null then
        with recursive q(name) as (
            select least((select min(p.queue) from place p where p.state = 3), (select min(h.queue) from held h))
            union all
            select least((select min(p.queue) from place p where p.state = 3 and p.queue > q.name),
                         (select min(h.queue) from held h where h.queue > q.name))
            from q where q.name is not null)
        select array_agg(name) into v_queues from q where name is not null;
    end if;
    perform unpack_expired(v_now, v_queues, p_limit);
    v_ids := array(
        select e.id from unnest(v_queues) as q(name)
        cross join lateral (
            select p.id, p.lease_expires_at, p.seq from place p
            where p.queue = q.name and p.state = 3 and p.lease_expires_at <= v_now
            order by p.lease_expires_at, p.seq limit p_limit) e
        order by e.lease_expires_at, e.seq limit p_limit);
    if cardinality(v_ids) = 0 then
        return;
    end if;
    v_ids := array(
        select p.id from unnest(v_ids) with ordinality as i(id, ord)
        cross join lateral (select * from place q where q.id = i.id offset 0) p
        where p.key is null or pg_try_advisory_xact_lock(lock_id('key', p.queue, p.key))
        order by i.ord);
    v_ids := array(
        select p.id from unnest(v_ids) with ordinality as i(id, ord)
        cross join lateral (
            select q.id from place q
            where q.id = i.id and q.state + 0 = 3 and q.lease_expires_at + interval '0' <= v_now
            for update skip locked offset 0) p
        order by i.ord);
    v_tied := array(
        select p.id from (select distinct t.o_tied from ties_of(v_ids) t) i
        cross join lateral (select q.id from place q where q.id = i.o_tied for update skip locked offset 0) p);
    v_left_out := array(select t.o_id from ties_of(v_ids) t where t.o_tied <> all (v_tied));
    return query
    select i.id from unnest(v_ids) with ordinality as i(id, ord) where i.id <> all (v_left_out) order by i.ord;
end $$;

-- Plain jobs whose leases have run out get places, as many as one sweep will look at.
create function {schema}.unpack_expired(p_now timestamptz, p_queues text[], p_limit integer) returns void
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_held record;
    v_ids uuid[];
    v_left integer := p_limit;
begin
    for v_held in
        select e.* from unnest(p_queues) as q(name)
        cross join lateral (
            select h.token, h.no, h.expires_at, h.ids, h.seqs from held h
            where h.queue = q.name and h.expires_at <= p_now
            order by h.expires_at limit p_limit for update skip locked) e
        order by e.expires_at, e.seqs
    loop
        exit when v_left <= 0;
        v_ids := array(select i.id from unnest(v_held.ids, v_held.seqs) as i(id, seq) order by i.seq limit v_left);
        perform unpack_held(v_held.token, v_held.no, v_ids);
        v_left := v_left - cardinality(v_ids);
    end loop;
end $$;

-- write_place: where a job stands after a step, in line or not.
create function {schema}.write_place(
    p_id uuid, p_version integer, p_lane text, p_rank smallint, p_state smallint, p_ties smallint,
    p_eligible_at timestamptz, p_run_at timestamptz, p_updated_at timestamptz, p_attempts integer, p_stalls integer,
    p_starts integer, p_fence bigint, p_cancel_requested boolean, p_token text, p_claimed_by text,
    p_lease_expires_at timestamptz, p_started_at timestamptz, p_finished_at timestamptz, p_flags text,
    p_last_error text, p_failed_at timestamptz, p_failure_kind text, p_result bytea, p_progress json, p_history json)
returns void
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    update place set
        version = p_version, lane = p_lane, rank = p_rank, state = p_state, ties = p_ties, eligible_at = p_eligible_at,
        run_at = p_run_at, updated_at = p_updated_at, attempts = p_attempts, stalls = p_stalls, starts = p_starts,
        fence = p_fence, cancel_requested = p_cancel_requested, token = p_token, claimed_by = p_claimed_by,
        lease_expires_at = p_lease_expires_at, started_at = p_started_at, finished_at = p_finished_at,
        flags = p_flags, last_error = p_last_error, failed_at = p_failed_at, failure_kind = p_failure_kind,
        result = p_result, progress = p_progress, history = p_history
    where id = p_id;
    perform line_up(p_id);
end $$;

-- prune: forget finished jobs whose retention is over, and idempotency keys a day after their job's end.
create function {schema}.prune(p_now timestamptz, p_limit integer) returns integer
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_queue text;
    v_state smallint;
    v_keep bigint;
    v_pruned integer := 0;
    v_more integer;
begin
    delete from idempotency where ctid = any (array(
        select ctid from idempotency where ends_at is not null and ends_at <= v_now
        order by ends_at limit p_limit for update skip locked));
    delete from spent where ctid = any (array(
        select ctid from spent where until <= v_now limit p_limit for update skip locked));
    delete from back where ctid = any (array(
        select ctid from back where at < clock_timestamp() - interval '1 minute' order by no limit p_limit
        for update skip locked));
    delete from worker where expires_at <= v_now - interval '1 day';
    select least((select min(queue) from place where state >= 4), (select min(queue) from done)) into v_queue;
    while v_queue is not null and v_pruned < p_limit loop
        v_keep := retention(v_queue, 4);
        if v_keep is not null then
            v_pruned := v_pruned + forget_done(v_queue, after(v_now, -v_keep), p_limit - v_pruned);
        end if;
        for v_state in 4 .. 6 loop
            exit when v_pruned >= p_limit;
            v_keep := retention(v_queue, v_state);
            continue when v_keep is null;
            v_more := forget(array(
                select p.id from place p
                where p.queue = v_queue and p.state = v_state and p.state >= 4 and p.finished_at <= after(v_now, -v_keep)
                order by p.finished_at limit p_limit - v_pruned for update skip locked));
            v_pruned := v_pruned + v_more;
        end loop;
        select least((select min(queue) from place where state >= 4 and queue > v_queue),
                     (select min(queue) from done where queue > v_queue)) into v_queue;
    end loop;
    return v_pruned;
end $$;

-- Forget plain jobs of a queue that were completed up to an instant, so many at most; how many there were.
create function {schema}.forget_done(p_queue text, p_until timestamptz, p_limit integer) returns integer
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_done record;
    v_seqs bigint[];
    v_count integer := 0;
begin
    for v_done in
        select d.block, d.no, d.seqs from done d where d.queue = p_queue and d.finished_at <= p_until
        order by d.finished_at limit p_limit for update skip locked
    loop
        exit when v_count >= p_limit;
        v_seqs := v_done.seqs[1 : p_limit - v_count];
        if cardinality(v_seqs) = cardinality(v_done.seqs) then
            delete from done where queue = p_queue and block = v_done.block and no = v_done.no;
        else
            update done set seqs = v_done.seqs[cardinality(v_seqs) + 1 :]
            where queue = p_queue and block = v_done.block and no = v_done.no;
        end if;
        delete from job where ctid = any (array(
            select j.ctid from unnest(v_seqs) as i(seq)
            cross join lateral (select k.ctid from job k where k.queue = p_queue and k.seq = i.seq offset 0) j));
        v_count := v_count + cardinality(v_seqs);
    end loop;
    return v_count;
end $$;

-- How long a queue keeps jobs that ended in a state, in microseconds; null for ever.
create function {schema}.retention(p_queue text, p_state integer) returns bigint
language plpgsql stable set search_path = {schema}, pg_temp as $$
declare
    v_rule record;
begin
    select * into v_rule from rule r where r.has_retention and r.queue in (p_queue, '*')
    order by r.queue = '*' limit 1;
    if not found then
        return case p_state when 4 then 3600000000 else 1209600000000 end;
    end if;
    return case p_state when 4 then v_rule.keep_completed_us when 5 then v_rule.keep_failed_us
           else v_rule.keep_cancelled_us end;
end $$;

-- Delete jobs with everything that stands for them; how many there were.
create function {schema}.forget(p_ids uuid[]) returns integer
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_count integer;
begin
    perform forget_bodies(p_ids);
    delete from alias where ctid = any (array(
        select a.ctid from unnest(p_ids) as i(id)
        cross join lateral (select b.ctid from alias b where b.target = i.id offset 0) a));
    delete from place where ctid = any (array(
        select p.ctid from unnest(p_ids) as i(id)
        cross join lateral (select q.ctid from place q where q.id = i.id offset 0) p));
    get diagnostics v_count = row_count;
    return v_count;
end $$;

-- Who may call what is said by whoever owns this schema: docs/reference/postgres.md, "Roles".
revoke execute on all functions in schema {schema} from public;
