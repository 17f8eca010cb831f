-- family_jobs: whole records as JSON, one each, in the order of `record_of` in rows.py, then whether the caller has
-- locked it, where it is parked, its notes, and how many of its children the stripes have counted.
create or replace function {schema}.family_jobs(p_ids uuid[], p_is_locked boolean) returns setof text
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    return query
    select json_build_array(
        s.id, s.seq, j.type, s.queue, s.state, encode(j.payload, 'hex'), micros(j.created_at), micros(s.updated_at), s.version,
        encode(s.key, 'hex'), encode(j.idempotency_key, 'hex'), j.headers::text, s.rank, s.lane,
        case when s.is_timed then micros(s.eligible_at) end, j.timeout_us, s.attempts, j.max_attempts, s.stalls, j.max_stalls,
        s.starts, j.min_backoff_us, j.max_backoff_us,
        encode(uuid_send(s.token), 'hex') || case when s.key is null then '' else 'k' end, s.fence, micros(s.ends_at), s.worker,
        s.cancel_requested, h.last_error, micros(h.failed_at), h.failure_kind, micros(s.started_at), encode(s.result, 'hex'),
        s.progress::text, h.history::text, s.update_flags, j.speculates_on, j.avoid_worker, micros(j.avoid_until),
        j.avoid_others, s.link_flags, coalesce(f.bonds::text, '{"parent":"' || j.parent || '"}'), f.family::text,
        coalesce(f.root, j.root, j.parent),
        p_is_locked, f.parked, case when s.link_flags & 32 <> 0 then (
            select json_agg(json_build_array(n.name, encode(n.data, 'hex'), micros(n.at)) order by n.no) from note n where n.id = s.id) end,
        case when f.is_open then (select sum(t.ended) from stripe t where t.parent = s.id) end
        )::text
    from unnest(p_ids) as i(id)
    cross join lateral (select * from job_state k where k.id = i.id offset 0) s
    cross join lateral (select * from job k where k.id = i.id offset 0) j
    left join lateral (select * from job_history k where k.id = i.id offset 0) h on true
    left join lateral (select * from family k where k.id = i.id and s.link_flags & 32 <> 0 offset 0) f on true;
end $$;
