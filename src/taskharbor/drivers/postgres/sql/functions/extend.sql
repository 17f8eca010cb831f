-- extend: count leases from now on; one row per lease that held, by its place in p_ids. The same as `extended` in
-- model/transitions.py.
--   p_ids: sorted. p_leases, p_tokens, p_workers, p_marks: as in `settle_attempts`. p_progress: null when there is none.
create or replace function {schema}.extend(
    p_now timestamptz, p_ids uuid[], p_leases smallint[], p_tokens uuid[], p_workers text[], p_marks boolean[],
    p_progress text[], p_lease_us bigint)
returns table (o_ord integer, o_fence bigint, o_worker text, o_queue text, o_cancel_requested boolean,
               o_version integer, o_expires_at timestamptz, o_at timestamptz)
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_now timestamptz;
    v_ends timestamptz;
    v_is_counted boolean := exists (select from queue_settings r where r.max_running is not null);
    v_before timestamptz[];
begin
    -- Locked first, in the order of ids as everywhere, stamped then. Only rows whose lease holds are waited for.
    v_before := array(
        select q.ends_at from unnest(p_ids) with ordinality as i(id, ord)
        left join lateral (
            select s.ends_at from job_state s where s.id = i.id and s.state = 3 and s.token = any (p_tokens)
            for update offset 0) q on true
        order by i.ord);
    if v_is_counted then
        perform from unnest(p_ids) as i(id)
        cross join lateral (
            select k.queue from job_state k where k.id = i.id and k.state = 3 and k.token = any (p_tokens) offset 0) s
        cross join lateral (select from slot k where k.queue = s.queue and k.id = i.id for update offset 0) t;
    end if;
    v_now := coalesce(p_now, clock_timestamp());
    v_ends := after(v_now, p_lease_us);
    return query
    update job_state s set
        ends_at = v_ends, version = s.version + 1, updated_at = v_now, progress = coalesce(i.progress::json, s.progress)
    from unnest(p_ids, p_leases, p_progress) with ordinality as i(id, lease, progress, ord)
    where s.id >= i.id and s.id <= i.id and s.state = 3 and s.token = p_tokens[coalesce(i.lease, 1)] and s.ends_at > v_now
      and s.worker = coalesce(p_workers[coalesce(i.lease, 1)], s.worker)
      and (s.key is not null) = p_marks[coalesce(i.lease, 1)]
    returning i.ord::integer, s.fence, s.worker, s.queue, s.cancel_requested, s.version, s.ends_at, v_now;
    if v_is_counted then
        update slot t set expires_at = v_ends from unnest(p_ids) as i(id)
        cross join lateral (
            select k.queue from job_state k where k.id = i.id and k.state = 3 and k.ends_at = v_ends and k.updated_at = v_now
            offset 0) s
        where (t.queue, t.id) >= (s.queue, i.id) and (t.queue, t.id) <= (s.queue, i.id);
    end if;
    -- A lease that ends sooner than it did may be over before its hint is due.
    insert into lease (expires_at, queue, ids)
    select v_ends, s.queue, array_agg(s.id) from unnest(p_ids, v_before) as i(id, before)
    cross join lateral (select k.id, k.queue from job_state k where k.id = i.id and k.state = 3 and k.ends_at = v_ends offset 0) s
    where i.before > v_ends group by s.queue;
end $$;
