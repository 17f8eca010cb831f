-- lock_jobs: lock these jobs, and the key (p_queue, p_key) if there is one, with all that a step of them can concern: the
-- jobs of their keys, their copies and originals. An alias locks the job it leads to. Finds every job that exists,
-- whatever moves it meanwhile. On a slow line every further question would keep others waiting for these locks, so the
-- answer has all that a step needs: first a row with the deciding instant, the aliases among the ids, the keys and the
-- settings of queues, as JSON; then a row for each job.
create or replace function {schema}.lock_jobs(p_ids uuid[], p_queue text, p_key bytea, p_now timestamptz)
returns table (o_state {schema}.job_state, o_job {schema}.job, o_history {schema}.job_history, o_at timestamptz, o_facts json)
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_locked uuid[];
begin
    for v_try in 1 .. 1000 loop
        begin
            v_locked := locked_if_still(p_ids, p_queue, p_key);
            exit;
        exception when sqlstate 'TH001' then  -- every lock since `begin` is released
            v_locked := null;
        end;
    end loop;
    if v_locked is null then
        raise exception 'these jobs never stop moving' using errcode = '40001';
    end if;
    o_at := coalesce(p_now, clock_timestamp());
    o_facts := json_build_array(
        (select json_agg(json_build_array(b.id, b.target)) from unnest(p_ids) as i(id)
         cross join lateral (select * from alias a where a.id = i.id offset 0) b),
        (select json_agg(json_build_array(k.queue, encode(k.key, 'hex'), k.holder, k.next)) from (
            select distinct q.queue, q.key from (
                select s.queue, s.key from unnest(v_locked) as i(id)
                cross join lateral (select * from job_state t where t.id = i.id offset 0) s
                union all select p_queue, p_key) q where q.key is not null) x
         cross join lateral (select * from job_key t where t.queue = x.queue and t.key = x.key offset 0) k),
        (select json_agg(json_build_array(r.queue, r.settings)) from queue_settings r));
    return next;
    return query
    select s.state, j.job, h.history, null::timestamptz, null::json
    from unnest(v_locked) as i(id)
    cross join lateral (select q as state from job_state q where q.id = i.id offset 0) s
    cross join lateral (select k as job from job k where k.id = i.id offset 0) j
    left join lateral (select k as history from job_history k where k.id = i.id offset 0) h on true;
end $$;
