-- Plain jobs: where one stands, and how it gets a place of its own.
--
-- Plans are made once per session, often while the tables are empty, and kept when they are full. To a
-- planner that believes in one row, reading a whole index is as good as a look-up. So every look-up by
-- id stands in a lateral subquery of its own (`offset 0` keeps it there), where the key is the only way;
-- and every change of many rows goes by ctid in a function that allows nothing but TID scans.

create function {schema}.micros(p_at timestamptz) returns bigint
language sql immutable parallel safe
return (extract(epoch from p_at) operator(pg_catalog.*) 1000000::numeric)::bigint;

-- The row that a plain job would have in place.
create function {schema}.plain_place(
    p_job {schema}.job, p_state integer, p_version integer, p_updated_at timestamptz, p_started_at timestamptz,
    p_expires_at timestamptz, p_finished_at timestamptz, p_token text, p_worker text)
returns {schema}.place
language plpgsql immutable set search_path = {schema}, pg_temp as $$
declare
    v_place place;
begin
    v_place.id := p_job.id;
    v_place.seq := p_job.seq;
    v_place.eligible_at := coalesce(p_job.run_at, p_job.created_at);
    v_place.updated_at := p_updated_at;
    v_place.fence := case when p_started_at is null then 0 else greatest(1, micros(p_started_at)) end;
    v_place.version := p_version;
    v_place.attempts := 0;
    v_place.stalls := 0;
    v_place.starts := case when p_started_at is null then 0 else 1 end;
    v_place.rank := p_job.rank;
    v_place.state := p_state;
    v_place.ties := 0;
    v_place.cancel_requested := false;
    v_place.queue := p_job.queue;
    v_place.lane := p_job.lane;
    v_place.run_at := p_job.run_at;
    v_place.lease_expires_at := p_expires_at;
    v_place.started_at := p_started_at;
    v_place.finished_at := p_finished_at;
    v_place.token := p_token;
    v_place.claimed_by := p_worker;
    return v_place;
end $$;

-- stands: where a job stands, plain or not. Reads everything as the calling statement sees it.
create function {schema}.stands(p_job {schema}.job) returns setof {schema}.place
language plpgsql stable rows 1
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query select p.* from place p where p.id = p_job.id;
    if found then
        return;
    end if;
    return query
    select p.* from done d
    cross join lateral plain_place(p_job, 4, d.version, d.finished_at, d.started_at, null, d.finished_at, d.token, null) p
    where d.queue = p_job.queue and d.block = p_job.seq >> 10 and p_job.seq = any (d.seqs);
    if found then
        return;
    end if;
    return query
    select p.* from held h
    cross join lateral plain_place(
        p_job, 3, 2 + h.extensions, h.updated_at, h.started_at, h.expires_at, null, h.token, h.worker) p
    where h.queue = p_job.queue and p_job.id = any (h.ids);
    if not found then
        return query
        select p.* from plain_place(p_job, 1, 1, p_job.created_at, null, null, null, null, null) p;
    end if;
end $$;

-- line_up: a job that has a place is in line if it is ready, and is not if it is not. What waits again stands before
-- younger jobs that others may be taking this very moment: they are told to look there.
create function {schema}.line_up(p_id uuid) returns void
language plpgsql set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    delete from ready where id = p_id and not is_plain;
    insert into ready (seq, eligible_at, id, rank, ties, is_timed, is_plain, queue, lane, line)
    select p.seq, p.eligible_at, p.id, p.rank, p.ties, p.run_at is not null, false, p.queue, p.lane,
           p.queue || '/' || p.lane || '/' || j.type
    from place p cross join lateral (select k.type from job k where k.id = p.id offset 0) j
    where p.id = p_id and p.state = 1;
    insert into back (queue) select p.queue from place p where p.id = p_id and p.state = 1 and p.version > 1;
end $$;

-- unpack: from now on these jobs have places of their own, as far as they stand still: one that somebody moves this
-- very moment is waited for, and may then stand where this has already looked. lock_jobs sees that, and begins anew.
-- p_tokens: of their leases, where they are known.
create function {schema}.unpack(p_ids uuid[], p_tokens text[] default null) returns void
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_ids uuid[];
    v_seqs bigint[];
    v_rest bigint[];
    v_held record;
    v_done record;
begin
    v_ids := array(
        select distinct i.id from unnest(p_ids) as i(id)
        cross join lateral (select from job k where k.id = i.id offset 0) j
        where not exists (select from place p where p.id = i.id offset 0)
        order by i.id);
    if cardinality(v_ids) = 0 then
        return;
    end if;
    if p_tokens is not null then
        for v_held in
            select h.token, h.no from held h where h.token = any (p_tokens) order by h.token, h.no for update
        loop
            perform unpack_held(v_held.token, v_held.no, v_ids);
        end loop;
    else
        for v_held in select h.token, h.no from held h where h.ids && v_ids order by h.token, h.no for update loop
            perform unpack_held(v_held.token, v_held.no, v_ids);
        end loop;
    end if;

    with picked as materialized (
        select r.ctid as row, j.waits from unnest(v_ids) as i(id)
        cross join lateral (select k as waits from job k where k.id = i.id offset 0) j
        cross join lateral (
            select q.ctid from ready q
            where q.queue = (j.waits).queue and q.lane = (j.waits).lane and q.rank = (j.waits).rank
              and q.eligible_at = coalesce((j.waits).run_at, (j.waits).created_at) and q.seq = (j.waits).seq
              and q.is_plain
            for update offset 0) r
    ), marked as (
        update ready set is_plain = false where ctid = any (array(select p.row from picked p))
    )
    insert into place
    select s.* from picked p
    cross join lateral plain_place(p.waits, 1, 1, (p.waits).created_at, null, null, null, null, null) s;

    v_seqs := array(
        select j.seq from unnest(v_ids) as i(id)
        cross join lateral (select k.seq from job k where k.id = i.id offset 0) j);
    for v_done in
        select d.ctid as row, d.* from (
            select distinct j.queue, j.seq >> 10 as block from unnest(v_ids) as i(id)
            cross join lateral (select k.queue, k.seq from job k where k.id = i.id offset 0) j
            order by 1, 2) b
        cross join lateral (
            select e.ctid, e.* from done e where e.queue = b.queue and e.block = b.block and e.seqs && v_seqs
            order by e.no for update) d
    loop
        insert into place
        select s.* from unnest(v_done.seqs) as i(seq)
        cross join lateral (
            select k as ended from job k where k.queue = v_done.queue and k.seq = i.seq offset 0) j
        cross join lateral plain_place(
            j.ended, 4, v_done.version, v_done.finished_at, v_done.started_at, null, v_done.finished_at,
            v_done.token, null) s
        where i.seq = any (v_seqs);
        v_rest := array(select i.seq from unnest(v_done.seqs) as i(seq) where i.seq <> all (v_seqs));
        if cardinality(v_rest) = 0 then
            delete from done where ctid = v_done.row;
        else
            update done set seqs = v_rest where ctid = v_done.row;
        end if;
    end loop;
end $$;

-- Jobs of one held row, which the caller has locked, get places of their own.
create function {schema}.unpack_held(p_token text, p_no bigint, p_ids uuid[]) returns void
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_held record;
    v_rest_ids uuid[];
    v_rest_seqs bigint[];
begin
    select * into v_held from held h where h.token = p_token and h.no = p_no;
    if not v_held.ids && p_ids then
        return;
    end if;
    insert into place
    select p.* from unnest(v_held.ids) as i(id)
    cross join lateral (select k as runs from job k where k.id = i.id offset 0) j
    cross join lateral plain_place(
        j.runs, 3, 2 + v_held.extensions, v_held.updated_at, v_held.started_at, v_held.expires_at, null,
        v_held.token, v_held.worker) p
    where i.id = any (p_ids);
    select array_agg(i.id), array_agg(i.seq) into v_rest_ids, v_rest_seqs
    from unnest(v_held.ids, v_held.seqs) as i(id, seq) where i.id <> all (p_ids);
    if v_rest_ids is null then
        delete from held where token = p_token and no = p_no;
    else
        update held set ids = v_rest_ids, seqs = v_rest_seqs where token = p_token and no = p_no;
    end if;
end $$;
