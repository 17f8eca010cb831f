-- drop_jobs: forget jobs, in whatever state, that the caller has locked.
create or replace function {schema}.drop_jobs(p_ids uuid[]) returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    perform leave_finished(e.state) from (
        select s.state from unnest(p_ids) as i(id)
        cross join lateral (select k as state from job_state k where k.id = i.id and k.state >= 4 offset 0) s
        order by (s.state).queue, (s.state).state, (s.state).ends_at offset 0) e;
    delete from slot where ctid = any (array(
        select t.ctid from unnest(p_ids) as i(id)
        cross join lateral (select k.queue from job_state k where k.id = i.id and k.state = 3 offset 0) s
        cross join lateral (select k.ctid from slot k where k.queue = s.queue and k.id = i.id offset 0) t));
    perform forget(p_ids);
end $$;
