-- The rarer steps: they lock what takes part, the driver decides about the records, and writes them back.

-- lock_jobs: lock these jobs, what shares their keys, and the copies and originals tied to them.
--   An alias locks the job it stands for. Keys are locked before rows, both in one order.
create function {schema}.lock_jobs(p_ids text[]) returns table (o_id uuid)
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set jit = off
as $$
declare
    v_ids uuid[];
begin
    v_ids := array(
        select coalesce(a.target, i.id::uuid) from unnest(p_ids) as i(id) left join alias a on a.id = i.id::uuid);
    perform pg_advisory_xact_lock(l.id) from (
        select distinct lock_id('key', p.queue, p.key) as id from unnest(v_ids) as i(id)
        cross join lateral (select * from place q where q.id = i.id offset 0) p
        where p.key is not null order by 1) l;
    -- Ids that became aliases while we waited.
    v_ids := array(
        select coalesce(a.target, i.id::uuid) from unnest(p_ids) as i(id) left join alias a on a.id = i.id::uuid);
    -- Copies are never locked without their original, so that nobody waits crosswise.
    v_ids := v_ids || array(
        select j.speculates_on from unnest(v_ids) as i(id)
        cross join lateral (select k.speculates_on from job k where k.id = i.id offset 0) j
        where j.speculates_on is not null);
    perform from (select distinct id from unnest(v_ids) as u(id) order by id) i
        cross join lateral (select q.id from place q where q.id = i.id for update offset 0) p;
    v_ids := v_ids
        || array(select j.id from unnest(v_ids) as i(id)
                 cross join lateral (select k.id from job k where k.speculates_on = i.id offset 0) j)
        || array(select k.id from unnest(v_ids) as i(id)
                 cross join lateral (select q.queue, q.key from place q where q.id = i.id and q.key is not null offset 0) p
                 cross join lateral (select o.id from place o where o.queue = p.queue and o.key = p.key
                                     and o.key is not null and o.state <= 3 offset 0) k);
    return query
    select p.id from (select distinct id from unnest(v_ids) as u(id) order by id) i
    cross join lateral (select q.id from place q where q.id = i.id for update offset 0) p;
end $$;

-- pick_expired: the oldest leases that have run out, locked; those that somebody else deals with are left out.
create function {schema}.pick_expired(p_now timestamptz, p_queues text[], p_limit integer)
returns table (o_id uuid)
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_queues text[] := p_queues;
    v_ids uuid[];
begin
    if v_queues is null then
        with recursive q(name) as (
            select min(queue) from place where state = 3
            union all
            select (select min(p.queue) from place p where p.state = 3 and p.queue > q.name) from q where q.name is not null)
        select array_agg(name) into v_queues from q where name is not null;
    end if;
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
    return query
    select p.id from unnest(v_ids) with ordinality as i(id, ord)
    cross join lateral (
        select q.id from place q
        where q.id = i.id and q.state + 0 = 3 and q.lease_expires_at + interval '0' <= v_now
        for update skip locked offset 0) p
    order by i.ord;
end $$;

-- prune: forget finished jobs whose retention is over, and idempotency keys a day after their job's end.
create function {schema}.prune(p_now timestamptz, p_limit integer) returns integer
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
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
    delete from spent where ctid = any (array(select ctid from spent where until <= v_now limit p_limit));
    delete from worker where expires_at <= v_now - interval '1 day';
    select min(queue) into v_queue from place where state >= 4;
    while v_queue is not null loop
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
        select min(queue) into v_queue from place where state >= 4 and queue > v_queue;
    end loop;
    return v_pruned;
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
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
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
