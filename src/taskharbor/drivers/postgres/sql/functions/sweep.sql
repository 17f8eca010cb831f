-- sweep: look at the hints that are due in these queues (null: in all), oldest first, and end up to p_limit leases that
-- have run out, as `reclaim_one` in drivers/lifecycle.py. Jobs that still run get a later hint. Waits for the table of leases only: what somebody else has locked keeps its hint.
--   One row per job, o_ord by the end of its lease: o_result 1 ready again, 2 merged, 5 failed, 6 cancelled; 8: the caller must reclaim it, because copies,
--   a family or a failure job take part; 9: it was dropped, because its row in `job` is lost.
create or replace function {schema}.sweep(p_now timestamptz, p_queues text[], p_limit integer)
returns table (o_ord integer, o_id text, o_result integer, o_version integer, o_at timestamptz, o_queue text, o_type text, o_stalls integer)
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_queues text[] := p_queues;
    v_rows tid[];
    v_hints record;
    v_some record;
    v_rest uuid[];     -- expired leases that keep a hint
    v_settled record;
begin
    if v_queues is null then
        with recursive q(name) as (
            select (select min(h.queue) from lease h)
            union all
            select (select min(h.queue) from lease h where h.queue > q.name) from q where q.name is not null)
        select array_agg(q.name) into v_queues from q where q.name is not null;
    end if;
    lock table lease in row exclusive mode;  -- before its rows: who waits for them has the table, and keeps who sets a limit waiting
    -- More hints than leases, because a heartbeat leaves the hint where it was; but no more than 2,000 jobs in one go.
    v_rows := array(
        select h.row from (
            select e.row, sum(e.size) over (order by e.expires_at, e.row) - e.size as before from (
                select e.* from unnest(v_queues) as q(name)
                cross join lateral (
                    select h.ctid as row, h.expires_at, cardinality(h.ids) as size from lease h
                    where h.queue = q.name and h.expires_at <= v_now order by h.expires_at limit p_limit + 100
                    for update skip locked) e
                order by e.expires_at limit p_limit + 100) e) h
        where h.before < 2000);
    if cardinality(v_rows) = 0 then
        return;
    end if;
    select array_agg(s.id order by s.ends_at) filter (where s.ends_at > v_now) as later,
           array_agg(s.ends_at order by s.ends_at) filter (where s.ends_at > v_now) as ends,
           array_agg(s.queue order by s.ends_at) filter (where s.ends_at > v_now) as queues,
           array_agg(s.id order by s.ends_at, s.seq) filter (where s.ends_at <= v_now) as out
    into v_hints
    from (select distinct i.id from lease h cross join unnest(h.ids) as i(id) where h.ctid = any (v_rows)) i
    cross join lateral (select * from job_state k where k.id = i.id and k.state = 3 offset 0) s;
    delete from lease where ctid = any (v_rows);
    if v_hints.later is not null then
        insert into lease (expires_at, queue, ids)
        select min(g.ends), g.queue, array_agg(g.id) from (
            select l.*, (row_number() over (partition by l.queue order by l.ends) - 1) / 100 as part
            from unnest(v_hints.later, v_hints.ends, v_hints.queues) as l(id, ends, queue)) g
        group by g.queue, g.part;
    end if;
    if v_hints.out is null then
        return;
    end if;
    v_rest := v_hints.out[p_limit + 1 :];
    -- What each of them is, and whether it is locked now, with its key. Copies end with their originals and a failure may
    -- make a failure job: both are left to the caller.
    select array_agg(i.id) filter (where j.type is null) as lost,
           array_agg(i.id) filter (where j.type is not null and g.is_careful) as careful,
           array_agg(i.id order by i.ord) filter (where l.is_mine) as ids, array_agg(i.ord order by i.ord) filter (where l.is_mine) as ords, array_agg(s.queue order by i.ord) filter (where l.is_mine) as queues,
           array_agg(j.type order by i.ord) filter (where l.is_mine) as types, array_agg(s.stalls order by i.ord) filter (where l.is_mine) as stalls,
           array_agg(i.id) filter (where j.type is not null and (g.is_careful or l.is_mine is not true)) as rest
    into v_some
    from unnest(v_hints.out[1 : p_limit]) with ordinality as i(id, ord)
    cross join lateral (select * from job_state k where k.id = i.id offset 0) s
    left join lateral (select k.max_stalls, k.type from job k where k.id = i.id offset 0) j on true
    cross join lateral (
        select s.link_flags & 44 <> 0
               or s.link_flags & 64 <> 0 and (s.cancel_requested or j.max_stalls > 0 and s.stalls + 1 >= j.max_stalls)
               or not s.cancel_requested and j.max_stalls > 0 and s.stalls + 1 >= j.max_stalls
               and j.type <> 'taskharbor.failed' and exists (
                   select from queue_settings r where r.fail_queue is not null and r.queue in (s.queue, '*')) as is_careful) g
    left join lateral (
        select true as is_mine from job_state k
        where k.id = i.id and j.type is not null and not g.is_careful and k.state = 3 and k.ends_at <= v_now
          -- As it was when `is_careful` was decided: a cancel or a new bond in between leaves it to the next sweep.
          and k.link_flags = s.link_flags and (k.link_flags & 64 = 0 or k.cancel_requested = s.cancel_requested)
          and (k.key is null or (select true from job_key q where q.queue = k.queue and q.key = k.key for update skip locked))
          and (not exists (select from slot q where q.queue = k.queue and q.id = k.id)
               or (select true from slot q where q.queue = k.queue and q.id = k.id for update skip locked))
          and (k.link_flags & 2 = 0 and k.key is null or has_idempotency(k.id, k.queue, k.key))
        for update skip locked offset 0) l on true;
    v_rest := v_rest || v_some.rest;
    if cardinality(v_rest) > 0 then
        insert into lease (expires_at, queue, ids)
        select min(s.ends_at), s.queue, array_agg(s.id) from unnest(v_rest) with ordinality as i(id, ord)
        cross join lateral (select * from job_state k where k.id = i.id and k.state = 3 offset 0) s
        group by s.queue, (i.ord - 1) / 100;
        return query select array_position(v_hints.out, i.id), i.id::text, 8, 0, v_now, null::text, null::text, 0
        from unnest(v_some.careful) as i(id);
    end if;
    if v_some.lost is not null then
        perform forget_lost(v_some.lost);
        return query select 0, i.id::text, 9, 0, v_now, null::text, null::text, 0 from unnest(v_some.lost) as i(id);
    end if;
    if v_some.ids is not null then
        select * into v_settled from settle_attempts(p_now, v_some.ids, null, null, null, null, null, null);
        return query
        select i.no::integer, i.id::text, case when d.ord = any (v_settled.o_merged) then 2 when d.state < 2 then 1 else d.state::integer end, d.version, v_settled.o_at,
               i.queue, coalesce(w.type, i.type), coalesce(w.stalls, i.stalls + case when d.state = 5 then 1 else 0 end)
        from unnest(v_some.ids, v_some.ords, v_some.queues, v_some.types, v_some.stalls) with ordinality as i(id, no, queue, type, stalls, ord)
        join unnest(v_settled.o_done, v_settled.o_states, v_settled.o_versions) as d(ord, state, version) on d.ord = i.ord
        left join lateral (  -- one that took over a blocked job may be of another type now
            select j.type, k.stalls from job_state k join job j on j.id = k.id where k.id = i.id and k.state = 0 offset 0) w on true
        order by i.ord;
    end if;
end $$;
