-- lock_jobs: lock these jobs, and the key (p_queue, p_key) if there is one, with all that a step of them can concern: the
-- jobs of their keys, their copies and originals. An alias locks the job it leads to. Finds every job that exists,
-- whatever moves it meanwhile. On a slow line every further question would keep others waiting for these locks, so the
-- answer has all that a step needs: first a row with the deciding instant, the aliases among the ids, the keys and the
-- settings of queues, as JSON; then a row for each job. No row at all, and no lock: a job is of a family, and `lock_step` is for those.
create or replace function {schema}.lock_jobs(p_ids uuid[], p_queue text, p_key bytea, p_now timestamptz)
returns table (o_state {schema}.job_state, o_job {schema}.job, o_history {schema}.job_history, o_at timestamptz, o_facts json)
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_queues text[] := case when p_key is not null then array[p_queue] end;
    v_keys bytea[] := case when p_key is not null then array[p_key] end;
    v_locked uuid[];
begin
    if has_families(p_ids) then
        return;
    end if;
    for v_try in 1 .. 1000 loop
        begin
            v_locked := lock_in_order(p_ids, v_queues, v_keys, true);
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
        keys_with_holders(v_locked, v_queues, v_keys),
        (select json_agg(json_build_array(r.queue, r.settings)) from queue_settings r));
    return next;
    return query
    select s.state, j.job, h.history, null::timestamptz, null::json
    from unnest(v_locked) as i(id)
    cross join lateral (select q as state from job_state q where q.id = i.id offset 0) s
    cross join lateral (select k as job from job k where k.id = i.id offset 0) j
    left join lateral (select k as history from job_history k where k.id = i.id offset 0) h on true;
end $$;
