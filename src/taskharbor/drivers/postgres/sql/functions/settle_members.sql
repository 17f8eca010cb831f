-- settle_members: acks of jobs that have a row in `family` but no children, in the usual case: nobody stops them, they have no copies
-- and no idempotency key, their queue keeps what has ended.
--   Arguments as in `settle_attempts`; p_at: the instant of what is done already, and p_done its places.
--   The rules are `settle_one` in drivers/family_verbs.py and `_count_end` in drivers/families.py. What an ack does to the jobs that
--   come after it is in `release_after`.
--   Their trees are locked, and what is not free is left: this waits for nothing, so the caller may hold any rows.
--   Returns the places of what was done, with versions. o_counted: as in `count_ends`; behind it 3 when something is owed.
create or replace function {schema}.settle_members(
    p_now timestamptz, p_at timestamptz, p_ids uuid[], p_leases smallint[], p_tokens uuid[], p_workers text[], p_marks boolean[],
    p_results bytea[], p_others json, p_done integer[],
    out o_at timestamptz, out o_done integer[], out o_versions integer[], out o_counted text)
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_others integer[] := case when p_others is null then '{}' else array(select o.ord from json_to_recordset(p_others) as o(ord integer)) end;
    v_most integer := least(100, greatest(4, 1000 / cardinality(p_ids)));  -- followers of one job: a call must not release many thousands
    v_keeps_less boolean := exists (select from queue_settings r where r.has_retention);
    v_roots uuid[];
    v_locked uuid[];
    v_some record;
    v_open uuid[] := '{}';
    v_owes boolean;
begin
    v_roots := array(
        select f.id from (
            select distinct k.root from unnest(p_ids) with ordinality as i(id, ord)
            cross join lateral (select k.root from family k where k.id = i.id offset 0) k
            where i.ord <> all (p_done) and i.ord <> all (v_others)) r
        cross join lateral (select k.id from family k where k.id = r.root for update skip locked offset 0) f);
    v_locked := array(
        select s.id from unnest(p_ids) with ordinality as i(id, ord)
        cross join lateral (select k.root from family k where k.id = i.id offset 0) f
        cross join lateral (
            select k.id from job_state k where k.id = i.id and k.state = 3 and k.link_flags = 32
              and (not exists (select from slot q where q.queue = k.queue and q.id = k.id)
                   or (select true from slot q where q.queue = k.queue and q.id = k.id for update skip locked))
            for update skip locked offset 0) s
        where f.root = any (v_roots) and i.ord <> all (p_done) and i.ord <> all (v_others));
    o_at := coalesce(p_now, p_at, clock_timestamp());
    with u as (
        update job_state s set
            state = 4, version = s.version + 1, updated_at = o_at, ends_at = o_at,
            result = case when p_results is not null then p_results[i.ord] end
        from unnest(p_ids, p_leases) with ordinality as i(id, lease, ord)
        cross join lateral (
            select k.parent, coalesce((k.family ->> 'followers')::integer, 0) as followers from family k
            where k.id = i.id and k.is_open and not k.is_stopping and k.parked is null
              and coalesce((k.family ->> 'total')::integer, 0) = 0 offset 0) f
        left join lateral (select k.is_stopping from family k where k.id = f.parent offset 0) p on true
        where s.id >= i.id and s.id <= i.id and i.id = any (v_locked) and not s.cancel_requested
          and s.token = p_tokens[coalesce(i.lease, 1)] and s.ends_at > o_at
          and s.worker = coalesce(p_workers[coalesce(i.lease, 1)], s.worker) and not p_marks[coalesce(i.lease, 1)]
          and p.is_stopping is not true and (f.followers = 0 or f.parent is not null and f.followers <= v_most)
          and (p_now is not null or s.updated_at <= o_at) and (not v_keeps_less or retention(s.queue, 4) is distinct from 0)
        returning i.ord, s.id, s.seq, s.version, s.queue, s.starts, f.parent, f.followers
    )
    select array_agg(u.ord::integer) as ords, array_agg(u.version) as versions, array_agg(u.id) as ids, array_agg(u.seq) as seqs,
           array_agg(u.queue) as queues, array_agg(u.parent is null) as roots, bool_or(u.starts > 1) as has_history,
           array_agg(u.id) filter (where u.parent is not null) as children, array_agg(u.id) filter (where u.followers > 0) as causes
    into v_some from u;
    o_done := coalesce(v_some.ords, '{}');
    o_versions := coalesce(v_some.versions, '{}');
    if v_some.ids is null then
        return;
    end if;
    update family f set is_open = false, is_blocked = false, deadline = null
    from unnest(v_some.ids) as i(id) where f.id >= i.id and f.id <= i.id;
    insert into family_end (id, seq, at, state, is_root, queue)
    select i.id, i.seq, o_at, 4, i.is_root, i.queue from unnest(v_some.ids, v_some.seqs, v_some.queues, v_some.roots) as i(id, seq, queue, is_root);
    insert into tally_change (queue, state, change) select q.queue, 4, count(*) from unnest(v_some.queues) as q(queue) group by 1;
    if v_some.has_history then
        insert into job_history as h (id, history)
        select s.id, json_build_array(json_build_array(s.fence, s.worker, micros(s.started_at), micros(o_at), 'completed', null, null))
        from unnest(v_some.ids) as i(id)
        cross join lateral (select * from job_state k where k.id = i.id and k.starts > 1 offset 0) s
        on conflict (id) do update set history = append_history(h.history, excluded.history -> 0);
    end if;
    delete from slot where ctid = any (array(
        select t.ctid from unnest(v_some.ids, v_some.queues) as i(id, queue)
        cross join lateral (select k.ctid from slot k where k.queue = i.queue and k.id = i.id offset 0) t));
    perform drop_hints(p_leases, p_tokens, p_done || o_done);
    if v_some.causes is not null then
        -- At an instant of its own: p_at is before the locks, and what waits may have changed since.
        select r.o_open, r.o_owes into v_open, v_owes from release_after(coalesce(p_now, clock_timestamp()), v_some.causes) r;
    end if;
    if v_some.children is not null then
        -- In a stripe that only those write who have the tree: nobody waits for it. A parent with a child that was just released, or
        -- waits still, is not over: the end of that child looks.
        select string_agg(c.parent, ' ') into o_counted
        from unnest(string_to_array(count_ends(v_some.children, 64), ' ')) as c(parent)
        where substr(c.parent, 2)::uuid <> all (v_open);
    end if;
    if v_owes then
        o_counted := concat_ws(' ', o_counted, '3');
    end if;
end $$;
