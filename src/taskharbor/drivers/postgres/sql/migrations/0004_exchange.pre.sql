-- How jobs are handed out and how most attempts end: settle and claim in one statement.

-- exchange: settle what can be settled by itself, then hand out jobs, in one statement.
--   p_ids, p_leases: acks, each with the place of its lease in p_tokens and p_workers; p_ids null for none, p_leases
--   null when all have the first.
--   p_results: null when there are none. An ack is done here when its job is plain and its lease holds.
--   The others are left alone, for the caller to look at.
--   p_queues … p_rate_us: the claim; p_limit 0 for none. p_sweep: claim nothing, and say so, when a
--   lease of these queues has run out. p_hungry: queues to mark as hungry when not enough was found.
--   p_checked_until: leases that ran out before that were looked at a moment ago. p_floor_…: for some lines, named
--   queue/lane, the place of the last job that the same caller took a moment ago. Entries before it are mostly
--   dead ones that no vacuum has removed yet; only higher ranks are looked at there. p_back: the newest row of `back`
--   at that time; when there is one since, there are no floors.
--   returns a first row: the deciding instant in o_created_at, in o_seq 1 when leases must be swept first,
--   2 when acks are left over and 4 when others stand at a gate (in all three nothing was claimed), in o_done the acks
--   that were settled, by place, and in o_versions their versions; o_done null: all of them, to the one version.
--   o_settled_at: the instant of the acks. In o_id the newest row of `back`, as text.
--   Then the jobs that were handed out, in order as long as all are plain; the others have o_more.
--
-- Locks (the order of all of them is written down in 0006_steps): acks wait for their rows of `held`. A gate is waited
-- for with empty hands only, and whoever is through it waits for nothing more.
create function {schema}.exchange(
    p_now timestamptz, p_ids uuid[], p_leases smallint[], p_tokens text[], p_workers text[], p_results bytea[],
    p_queues text[], p_lanes text[], p_worker text, p_limit integer, p_lease_us bigint, p_token text,
    p_types text[], p_rate_count integer, p_rate_us bigint, p_sweep boolean, p_hungry text[],
    p_checked_until timestamptz default null, p_floor_lines text[] default null, p_floor_ranks smallint[] default null,
    p_floor_ats timestamptz[] default null, p_floor_seqs bigint[] default null, p_back bigint default null)
returns table (
    o_id text, o_seq bigint, o_type text, o_queue text, o_payload bytea, o_created_at timestamptz, o_rank smallint,
    o_lane text, o_run_at timestamptz, o_max_attempts integer, o_max_stalls integer, o_more json,
    o_done integer[], o_versions integer[], o_settled_at timestamptz)
language plpgsql
set search_path = {schema}, pg_temp
-- A plan made while the tables were empty must still be right when they are full.
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_expires timestamptz;
    v_flags integer := 0;
    v_must_sweep boolean;
    v_is_gated boolean;
    v_is_due boolean;
    v_queue text;
    v_lane text;
    v_room integer;
    v_left integer := p_limit;
    v_taken integer;
    v_rooms integer[];
    v_harbor integer;
    v_picked tid[] := '{}';      -- of all the rounds: rows of ready
    v_ids uuid[] := '{}';        -- and the plain jobs among them, in order
    v_seqs bigint[] := '{}';
    v_places uuid[] := '{}';     -- and those that have a place
    v_from_queues text[] := '{}';  -- per round that found something: its queue,
    v_counts integer[] := '{}';  -- how many jobs it took,
    v_firsts integer[] := '{}';  -- and where its plain ones begin and end in v_ids
    v_lasts integer[] := '{}';
    v_more_ids uuid[];
    v_more_seqs bigint[];
    v_queues text[] := p_queues;
    v_leased text[] := p_queues;
    v_floor_lines text[] := p_floor_lines;
    v_back bigint;
    v_floor integer;
    v_from_rank smallint;
    v_from_at timestamptz;
    v_from_seq bigint;
    v_below_rank smallint;
    v_rows tid[];
    v_others uuid[];
begin
    if p_ids is not null then
        select d.done, d.versions, d.at into o_done, o_versions, v_now
        from complete(p_now, p_ids, p_leases, p_tokens, p_workers, p_results) d;
        o_settled_at := v_now;
        if o_done is not null and cardinality(o_done) < cardinality(p_ids) then
            v_flags := 2;
            v_left := 0;
        end if;
    end if;

    if cardinality(p_queues) > 4 and p_limit > 0 then  -- what it costs must not depend on queues where nothing is
        v_queues := queues_with_jobs(p_queues);
        v_leased := queues_with_leases(p_queues);
    end if;
    select
        p_sweep and (exists (
            select from held h where h.queue = any (v_leased) and h.expires_at <= v_now
            and h.expires_at > coalesce(p_checked_until, '-infinity')) or exists (
            select from place p where p.queue = any (v_leased) and p.state = 3 and p.lease_expires_at <= v_now
            and p.lease_expires_at > coalesce(p_checked_until, '-infinity'))),
        p_rate_count is not null or exists (
            select from rule r where (r.queue = any (v_queues) or r.queue = '*')
            and (r.paused or r.max_running is not null or r.execute_count is not null)),
        exists (select from place p where p.queue = any (v_queues) and p.state = 0 and p.run_at <= v_now)
    into v_must_sweep, v_is_gated, v_is_due
    where p_limit > 0;
    if v_must_sweep then
        v_flags := v_flags | 1;
        v_left := 0;
    end if;
    o_created_at := v_now;
    o_seq := v_flags;
    if v_left <= 0 then
        return next;
        return;
    end if;

    if v_is_gated then
        if not pass_the_gates_alone(
            v_queues, case when p_rate_count is not null then p_worker end, p_ids is null)
        then
            o_seq := 4;
            return next;
            return;
        end if;
        v_now := coalesce(p_now, clock_timestamp());
        v_rooms := array(select room(q.name, v_now) from unnest(v_queues) with ordinality as q(name, ord) order by q.ord);
        v_harbor := room('*', v_now);
        if p_rate_count is not null then
            v_harbor := least(v_harbor, budget_room('worker', p_worker, p_rate_count, p_rate_us, v_now));
        end if;
        v_is_due := exists (select from place p where p.queue = any (v_queues) and p.state = 0 and p.run_at <= v_now);
    end if;
    if p_now is null then
        v_back := (select max(b.no) from back b);
        o_id := v_back::text;
        if v_floor_lines is not null and v_back > coalesce(p_back, 0) and exists (
            select from back b where b.no > coalesce(p_back, 0) and b.queue = any (p_queues))
        then
            v_floor_lines := null;
        end if;
    end if;

    if v_is_due then
        foreach v_queue in array v_queues loop
            perform promote_due(v_queue, v_now, 10000);
        end loop;
    end if;

    foreach v_queue in array v_queues loop
        exit when v_left <= 0;
        v_room := v_left;
        if v_is_gated then
            v_room := least(v_left, v_rooms[array_position(v_queues, v_queue)], v_harbor);
        end if;
        foreach v_lane in array p_lanes loop
            v_floor := array_position(v_floor_lines, v_queue || '/' || v_lane);
            v_from_rank := -32768;
            v_from_at := '-infinity';
            v_from_seq := 0;
            v_below_rank := 32767;
            if v_floor is not null then
                v_below_rank := p_floor_ranks[v_floor];
            end if;
            -- From the left end; with a floor: higher ranks first, then what lies behind the floor.
            loop
                exit when v_room <= 0;
                if p_types is null then
                    select array_agg(c.row), array_agg(c.id) filter (where c.is_plain),
                           array_agg(c.seq) filter (where c.is_plain), array_agg(c.id) filter (where not c.is_plain)
                    into v_rows, v_more_ids, v_more_seqs, v_others from (
                        select c.ctid as row, c.id, c.seq, c.is_plain from ready c
                        where c.queue = v_queue and c.lane = v_lane
                          and (c.rank, c.eligible_at, c.seq) > (v_from_rank, v_from_at, v_from_seq)
                          and c.rank < v_below_rank
                          and (not c.is_timed or c.eligible_at <= v_now)  -- a clock that went back
                          and (c.ties & 4 = 0 or may_copy(c.id, p_worker, v_now))
                          -- Whoever has locked the place of a job also decides about its place in line.
                          and (c.is_plain or (select true from place p where p.id = c.id for update skip locked))
                        order by c.rank, c.eligible_at, c.seq
                        limit v_room
                        for update skip locked) c;
                else
                    select s.rows, s.ids, s.seqs, s.others into v_rows, v_more_ids, v_more_seqs, v_others
                    from some_types(v_queue, v_lane, p_types, v_from_rank, v_from_at, v_from_seq, v_below_rank, v_room,
                                    p_worker, v_now) s;
                end if;
                v_taken := coalesce(cardinality(v_rows), 0);
                if v_taken > 0 then
                    v_picked := v_picked || v_rows;
                    v_from_queues := v_from_queues || v_queue;
                    v_counts := v_counts || v_taken;
                    v_firsts := v_firsts || cardinality(v_ids) + 1;
                    v_ids := v_ids || v_more_ids;
                    v_seqs := v_seqs || v_more_seqs;
                    v_lasts := v_lasts || cardinality(v_ids);
                    v_places := v_places || v_others;
                end if;
                v_left := v_left - v_taken;
                v_room := v_room - v_taken;
                v_harbor := v_harbor - v_taken;
                exit when v_floor is null;
                v_from_rank := p_floor_ranks[v_floor];
                v_from_at := p_floor_ats[v_floor];
                v_from_seq := p_floor_seqs[v_floor];
                v_below_rank := 32767;
                v_floor := null;
            end loop;
        end loop;
    end loop;

    -- Locked first, stamped then: whatever made room, and whatever moved these jobs before, lies before their leases.
    v_now := coalesce(p_now, clock_timestamp());
    v_expires := after(v_now, p_lease_us);
    o_created_at := v_now;
    return next;
    if cardinality(v_picked) > 0 then
        return query
        with taken as (
            delete from ready where ctid = any (v_picked)
        ), kept as (
            -- In rows of 64: those are stored whole, and cheap to write again when some jobs leave.
            insert into held (queue, token, worker, started_at, expires_at, updated_at, ids, seqs)
            select r.queue, p_token, p_worker, v_now, v_expires, v_now,
                   v_ids[i : least(i + 63, r.last)], v_seqs[i : least(i + 63, r.last)]
            from unnest(v_from_queues, v_firsts, v_lasts) as r(queue, first, last)
            cross join generate_series(r.first, r.last, 64) as i
        )
        select j.id::text, j.seq, j.type, j.queue, j.payload, j.created_at, j.rank, j.lane, j.run_at,
            j.max_attempts, j.max_stalls,
            case when j.headers is not null or j.timeout_us <> 0 or j.min_backoff_us is not null
                      or j.max_backoff_us is not null
            then json_build_array(j.headers, j.timeout_us, j.min_backoff_us, j.max_backoff_us) end,
            null::integer[], null::integer[], null::timestamptz
        from unnest(v_ids) as t(id)
        cross join lateral (select * from job k where k.id = t.id offset 0) j;
        if cardinality(v_places) > 0 then
            return query select * from take_others(v_places, v_now, v_expires, p_worker, p_token);
        end if;
        if v_is_gated then
            perform spend_execution(r.queue, p_worker, p_rate_count, p_rate_us, r.count, v_now)
            from unnest(v_from_queues, v_counts) as r(queue, count);
        end if;
    end if;
    if p_hungry is not null and v_left > 0 then
        insert into hungry
        select q from unnest(p_hungry) q where not exists (select from hungry h where h.queue = q) order by q
        on conflict do nothing;
    end if;
end $$;

-- some_types: lock the first ready jobs of a queue and a lane that are of these types, in order, behind a place.
--   Most workers know the types of most jobs that wait, so the first look is along the line of all. Where jobs of other
--   types stand in the way, as many as there may be, each type's own line is asked for its first.
create function {schema}.some_types(
    p_queue text, p_lane text, p_types text[], p_rank smallint, p_at timestamptz, p_seq bigint, p_below_rank smallint,
    p_limit integer, p_worker text, p_now timestamptz)
returns table (rows tid[], ids uuid[], seqs bigint[], others uuid[])
language plpgsql set search_path = {schema}, pg_temp as $$
declare
    v_lines text[] := array(select p_queue || '/' || p_lane || '/' || t.name from unnest(p_types) as t(name));
    v_from_rank smallint := p_rank;
    v_from_at timestamptz := p_at;
    v_from_seq bigint := p_seq;
    v_walks integer := 3;
    v_step integer := p_limit + 8;
    v_seen integer;
    v_mine tid[];
    v_got record;
begin
    rows := '{}';
    loop
        if v_walks > 0 then
            select array_agg(e.row) filter (where e.line = any (v_lines)), count(*),
                   (array_agg(e.rank))[count(*)], (array_agg(e.eligible_at))[count(*)], (array_agg(e.seq))[count(*)]
            into v_mine, v_seen, v_from_rank, v_from_at, v_from_seq
            from (
                select c.ctid as row, c.line, c.rank, c.eligible_at, c.seq from ready c
                where c.queue = p_queue and c.lane = p_lane
                  and (c.rank, c.eligible_at, c.seq) > (v_from_rank, v_from_at, v_from_seq) and c.rank < p_below_rank
                order by c.rank, c.eligible_at, c.seq
                limit v_step) e;
        else
            select array_agg(e.row), count(*),
                   (array_agg(e.rank))[count(*)], (array_agg(e.eligible_at))[count(*)], (array_agg(e.seq))[count(*)]
            into v_mine, v_seen, v_from_rank, v_from_at, v_from_seq
            from (
                select f.* from unnest(v_lines) as l(name)
                cross join lateral (
                    select c.ctid as row, c.rank, c.eligible_at, c.seq from ready c
                    where c.line = l.name and c.rank < p_below_rank
                      and (c.rank, c.eligible_at, c.seq) > (v_from_rank, v_from_at, v_from_seq)
                    order by c.rank, c.eligible_at, c.seq
                    limit v_step) f
                order by f.rank, f.eligible_at, f.seq
                limit v_step) e;
        end if;
        if v_mine is not null then
            select array_agg(c.row) as rows, array_agg(c.id) filter (where c.is_plain) as ids,
                   array_agg(c.seq) filter (where c.is_plain) as seqs,
                   array_agg(c.id) filter (where not c.is_plain) as others
            into v_got from (
                select c.ctid as row, c.id, c.seq, c.is_plain from ready c
                where c.ctid = any (v_mine)
                  and (not c.is_timed or c.eligible_at <= p_now)
                  and (c.ties & 4 = 0 or may_copy(c.id, p_worker, p_now))
                  and (c.is_plain or (select true from place p where p.id = c.id for update skip locked))
                order by c.rank, c.eligible_at, c.seq
                limit p_limit - cardinality(rows)
                for update skip locked) c;
            rows := rows || coalesce(v_got.rows, '{}');
            ids := ids || v_got.ids;
            seqs := seqs || v_got.seqs;
            others := others || v_got.others;
        end if;
        exit when v_seen < v_step or cardinality(rows) >= p_limit;
        v_walks := v_walks - 1;
        v_step := v_step * 2;
    end loop;
    return next;
end $$;

-- Of these queues, in their order, those where a job is ready or will be. Asked from the side of the jobs; from the
-- side of the names only where many queues have jobs.
create function {schema}.queues_with_jobs(p_queues text[]) returns text[]
language plpgsql set search_path = {schema}, pg_temp as $$
declare
    v_most integer := least(cardinality(p_queues), 200);
    v_found text[];
begin
    with recursive r(name, no) as (
        select (select min(c.queue) from ready c), 1
        union all
        select (select min(c.queue) from ready c where c.queue > r.name), r.no + 1
        from r where r.name is not null and r.no <= v_most
    ), l(name, no) as (
        select (select min(c.queue) from place c where c.state = 0), 1
        union all
        select (select min(c.queue) from place c where c.state = 0 and c.queue > l.name), l.no + 1
        from l where l.name is not null and l.no <= v_most
    )
    select case when max(e.no) <= v_most then coalesce(array_agg(distinct e.name), '{}') end
    into v_found from (select * from r union all select * from l) e;
    if v_found is not null then
        return array(select f.name from unnest(v_found) as f(name) where array_position(p_queues, f.name) is not null
                     order by array_position(p_queues, f.name));
    end if;
    return array(
        select q.name from unnest(p_queues) with ordinality as q(name, ord)
        where exists (select from ready c where c.queue = q.name offset 0)
           or exists (select from place c where c.queue = q.name and c.state = 0 offset 0)
        order by q.ord);
end $$;

-- The same for queues where a lease may run out; in no order.
create function {schema}.queues_with_leases(p_queues text[]) returns text[]
language plpgsql set search_path = {schema}, pg_temp as $$
declare
    v_most integer := least(cardinality(p_queues), 200);
    v_found text[];
begin
    with recursive h(name, no) as (
        select (select min(c.queue) from held c), 1
        union all
        select (select min(c.queue) from held c where c.queue > h.name), h.no + 1
        from h where h.name is not null and h.no <= v_most
    ), l(name, no) as (
        select (select min(c.queue) from place c where c.state = 3), 1
        union all
        select (select min(c.queue) from place c where c.state = 3 and c.queue > l.name), l.no + 1
        from l where l.name is not null and l.no <= v_most
    )
    select case when max(e.no) <= v_most then coalesce(array_agg(distinct e.name), '{}') end
    into v_found from (select * from h union all select * from l) e;
    if v_found is null then
        return p_queues;
    end if;
    return array(select f.name from unnest(v_found) as f(name) where array_position(p_queues, f.name) is not null);
end $$;

-- A copy is handed out while its original runs, and not there; to the slower workers, which it names one to a line,
-- from the instant on that stands in its second line.
create function {schema}.may_copy(p_copy uuid, p_worker text, p_now timestamptz) returns boolean
language plpgsql stable set search_path = {schema}, pg_temp as $$
begin
    return (
        select split_part(k.avoid_worker, E'\n', 1) <> p_worker
          and (strpos(k.avoid_worker, E'\n' || p_worker || E'\n') = 0
               or micros(p_now) >= split_part(k.avoid_worker, E'\n', 2)::bigint)
          and exists (
            select from place o where o.id = k.speculates_on and o.state + 0 = 3 and o.claimed_by <> p_worker)
        from job k where k.id = p_copy);
end $$;

-- take_others: put jobs that have a place, which the caller has locked, under a fresh lease.
create function {schema}.take_others(
    p_ids uuid[], p_now timestamptz, p_expires timestamptz, p_worker text, p_token text)
returns table (
    o_id text, o_seq bigint, o_type text, o_queue text, o_payload bytea, o_created_at timestamptz, o_rank smallint,
    o_lane text, o_run_at timestamptz, o_max_attempts integer, o_max_stalls integer, o_more json,
    o_done integer[], o_versions integer[], o_settled_at timestamptz)
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    select j.id::text, j.seq, j.type, j.queue, j.payload, j.created_at, p.rank, p.lane, p.run_at,
        j.max_attempts, j.max_stalls,
        json_build_array(
            j.headers, j.timeout_us, j.min_backoff_us, j.max_backoff_us, p.version, encode(j.key, 'hex'),
            encode(j.idempotency_key, 'hex'), p.attempts, p.stalls, p.starts, p.fence, p.cancel_requested,
            p.last_error, micros(p.failed_at), p.failure_kind, p.history, j.speculates_on, j.avoid_worker),
        null::integer[], null::integer[], null::timestamptz
    from lease(array(
        select q.ctid from unnest(p_ids) as i(id)
        cross join lateral (select r.ctid from place r where r.id = i.id offset 0) q),
        p_now, p_expires, p_worker, p_token) p
    cross join lateral (select * from job k where k.id = p.id offset 0) j;
end $$;

create function {schema}.lease(
    p_rows tid[], p_now timestamptz, p_expires timestamptz, p_worker text, p_token text)
returns setof {schema}.place
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_indexscan = off set enable_indexonlyscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    update place p set
        state = 3, token = p_token, fence = greatest(p.fence + 1, micros(p_now)), lease_expires_at = p_expires,
        claimed_by = p_worker, starts = p.starts + 1, started_at = p_now, progress = null,
        updated_at = p_now, version = p.version + 1
    where p.ctid = any (p_rows)
    returning p.*;
end $$;

-- complete: the acks of an exchange that are about plain jobs. Answers which, by place, their versions, and when; no
-- `done`: all, to one version.
create function {schema}.complete(
    p_now timestamptz, p_ids uuid[], p_leases smallint[], p_tokens text[], p_workers text[], p_results bytea[])
returns table (done integer[], versions integer[], at timestamptz)
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = on set enable_nestloop = off
set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_held record;
    v_last record;
    v_rows tid[] := '{}';
    v_ids uuid[];
    v_seqs bigint[];
    v_ords integer[];
    v_done integer[] := '{}';
    v_versions integer[] := '{}';
    v_is_one boolean := true;
    v_locked tid[];
    v_now timestamptz;
begin
    -- Locked first, stamped then: somebody may extend or take one of them this very moment.
    v_locked := array(select h.ctid from held h where h.token = any (p_tokens) order by h.token, h.no for update);
    v_now := coalesce(p_now, clock_timestamp());
    for v_held in
        select h.ctid as row, h.no, h.token, h.queue, h.started_at, 3 + h.extensions as version,
            array_agg(m.id) filter (where a.ord is null) as rest_ids,
            array_agg(m.seq) filter (where a.ord is null) as rest_seqs,
            array_agg(m.id) filter (where a.ord is not null) as ids,
            array_agg(m.seq) filter (where a.ord is not null) as seqs,
            array_agg(a.ord::integer) filter (where a.ord is not null) as ords
        from (select ctid, * from held where ctid = any (v_locked) and expires_at > v_now) h
        cross join lateral unnest(h.ids, h.seqs) as m(id, seq)
        left join unnest(p_ids, p_leases) with ordinality as a(id, lease, ord)
          on a.id = m.id and p_tokens[coalesce(a.lease, 1)] = h.token
          and coalesce(p_workers[coalesce(a.lease, 1)], h.worker) = h.worker
        group by h.ctid, h.no, h.token, h.queue, h.started_at, h.extensions
        order by h.token, h.queue, h.extensions
    loop
        continue when v_held.ids is null;
        if v_held.rest_ids is null then
            v_rows := v_rows || v_held.row;
        else
            update held set ids = v_held.rest_ids, seqs = v_held.rest_seqs
            where token = v_held.token and no = v_held.no;
        end if;
        -- What one claim took together is written down together.
        if v_ids is not null then
            v_is_one := v_is_one and v_last.version = v_held.version;
            if (v_held.token, v_held.queue, v_held.version) <> (v_last.token, v_last.queue, v_last.version) then
                perform complete_some(
                    v_now, v_ids, v_seqs, v_ords, p_results, v_last.version, v_last.started_at, v_last.queue, v_last.token);
                v_ids := null;
                v_seqs := null;
                v_ords := null;
            end if;
        end if;
        v_ids := v_ids || v_held.ids;
        v_seqs := v_seqs || v_held.seqs;
        v_ords := v_ords || v_held.ords;
        v_done := v_done || v_held.ords;
        v_versions := v_versions || array_fill(v_held.version, array[cardinality(v_held.ords)]);
        v_last := v_held;
    end loop;
    if v_ids is not null then
        perform leave_held(v_rows);
        perform complete_some(
            v_now, v_ids, v_seqs, v_ords, p_results, v_last.version, v_last.started_at, v_last.queue, v_last.token);
    end if;
    if v_is_one and cardinality(v_done) = cardinality(p_ids) then
        return query select null::integer[], v_versions[1:1], v_now;
    else
        return query select v_done, v_versions, v_now;
    end if;
end $$;

create function {schema}.leave_held(p_rows tid[]) returns void
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_indexscan = off set enable_indexonlyscan = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    delete from held where ctid = any (p_rows);
end $$;

-- Jobs of one claim, one queue and one version are completed. Where a queue keeps no completed jobs, they are
-- deleted in the same step.
create function {schema}.complete_some(
    p_now timestamptz, p_ids uuid[], p_seqs bigint[], p_ords integer[], p_results bytea[], p_version integer,
    p_started_at timestamptz, p_queue text, p_token text)
returns void
language plpgsql set search_path = {schema}, pg_temp as $$
begin
    if retention(p_queue, 4) is not distinct from 0 then
        perform forget_bodies(p_ids);
    elsif p_results is not null then
        perform complete_with_results(p_ids, p_ords, p_results, p_version, p_now, p_started_at, p_token);
    else
        insert into done (block, started_at, finished_at, version, queue, token, seqs)
        select s.seq >> 10, p_started_at, p_now, p_version, p_queue, p_token, array_agg(s.seq)
        from unnest(p_seqs) as s(seq) group by s.seq >> 10;
    end if;
end $$;

create function {schema}.complete_with_results(
    p_ids uuid[], p_ords integer[], p_results bytea[], p_version integer, p_now timestamptz, p_started_at timestamptz,
    p_token text)
returns void
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    with completed as materialized (
        select j.*, p_results[i.ord] as result from unnest(p_ids, p_ords) as i(id, ord)
        cross join lateral (
            select k.id, k.seq, k.created_at, k.run_at, k.rank, k.queue, k.lane from job k where k.id = i.id offset 0) j
    ), without as (
        insert into done (block, started_at, finished_at, version, queue, token, seqs)
        select c.seq >> 10, p_started_at, p_now, p_version, c.queue, p_token, array_agg(c.seq)
        from completed c where c.result is null group by c.queue, c.seq >> 10
    )
    insert into place (id, seq, eligible_at, updated_at, fence, version, starts, rank, state, queue, lane, run_at,
                       started_at, finished_at, token, result)
    select c.id, c.seq, coalesce(c.run_at, c.created_at), p_now, greatest(1, micros(p_started_at)), p_version, 1, c.rank,
           4, c.queue, c.lane, c.run_at, p_started_at, p_now, p_token, c.result
    from completed c where c.result is not null;
end $$;

create function {schema}.forget_bodies(p_ids uuid[]) returns void
language plpgsql
set search_path = {schema}, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    delete from job where ctid = any (array(
        select j.ctid from unnest(p_ids) as i(id)
        cross join lateral (select k.ctid from job k where k.id = i.id offset 0) j));
end $$;
