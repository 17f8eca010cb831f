-- merge_blocked: each of p_ids has stopped running and waits again; it takes over what is blocked behind it (p_mates, by
-- their flags), whose id becomes an alias. The caller has locked the keys. The same as `merged` in model/transitions.py.
create or replace function {schema}.merge_blocked(p_now timestamptz, p_ids uuid[], p_mates uuid[]) returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    update job j set
        type = case when b.data then b.type else j.type end,
        payload = case when b.data then b.payload else j.payload end,
        headers = case when b.data then b.headers else j.headers end,
        timeout_us = case when b.data then b.timeout_us else j.timeout_us end,
        max_attempts = case when b.retry then b.max_attempts else j.max_attempts end,
        max_stalls = case when b.retry then b.max_stalls else j.max_stalls end,
        min_backoff_us = case when b.retry then b.min_backoff_us else j.min_backoff_us end,
        max_backoff_us = case when b.retry then b.max_backoff_us else j.max_backoff_us end
    from unnest(p_ids, p_mates) as i(id, mate)
    cross join lateral (
        select k.*, substr(s.update_flags, 1, 1) = '1' as data, substr(s.update_flags, 3, 1) = '1' as retry
        from job k join job_state s on s.id = k.id where k.id = i.mate offset 0) b
    where j.id >= i.id and j.id <= i.id;
    update job_state s set
        rank = case when m.data then m.rank else s.rank end,
        lane = case when m.data then m.lane else s.lane end,
        eligible_at = coalesce(m.run_at, j.created_at),
        is_timed = m.run_at is not null,
        attempts = case when m.reset then 0 else s.attempts end,
        stalls = case when m.reset then 0 else s.stalls end,
        link_flags = s.link_flags | m.link_flags & 2
    from unnest(p_ids, p_mates) as i(id, mate)
    cross join lateral (select k.created_at from job k where k.id = i.id offset 0) j
    cross join lateral (
        select b.rank, b.lane, b.link_flags, substr(b.update_flags, 1, 1) = '1' as data,
               resets_counts(b.update_flags) = '1' as reset,
               chosen_run_at(substr(b.update_flags, 2, 1), case when a.is_timed then a.eligible_at end,
                             case when b.is_timed then b.eligible_at end, p_now) as run_at
        from job_state b join job_state a on a.id = i.id where b.id = i.mate offset 0) m
    where s.id >= i.id and s.id <= i.id;
    update alias a set target = i.id from unnest(p_ids, p_mates) as i(id, mate) where a.target >= i.mate and a.target <= i.mate;
    insert into alias select i.mate, i.id from unnest(p_ids, p_mates) as i(id, mate);
    update idempotency k set job_id = i.id from unnest(p_ids, p_mates) as i(id, mate) where k.job_id >= i.mate and k.job_id <= i.mate;
    perform forget(p_mates);
end $$;
