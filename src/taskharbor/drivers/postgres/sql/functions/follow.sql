-- follow: the holders of these keys have ended, and the jobs blocked behind them wait from now on. The caller has locked
-- the keys. The same as `unblocked` in model/transitions.py.
create or replace function {schema}.follow(p_now timestamptz, p_rows tid[], p_nexts uuid[]) returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    update job_key set holder = next, next = null, next_seq = null where ctid = any (p_rows) and next is not null;
    update job_state s set state = 0, version = s.version + 1, updated_at = p_now, update_flags = null
    from unnest(p_nexts) as i(id) where s.id >= i.id and s.id <= i.id and s.state = 2;
    perform line_up(p_nexts, p_now);
    perform wake(array(
        select distinct s.queue from unnest(p_nexts) as i(id)
        cross join lateral (select k.queue from job_state k where k.id = i.id and k.eligible_at <= p_now offset 0) s));
end $$;
