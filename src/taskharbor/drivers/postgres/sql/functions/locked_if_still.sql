-- locked_if_still: one try of `lock_jobs`: keys, then rows of `waiting`, then of `job_state`. TH001: a job has moved while
-- this waited for a lock.
create or replace function {schema}.locked_if_still(p_ids uuid[], p_queue text, p_key bytea) returns uuid[]
language plpgsql set search_path = {schema}, pg_temp {plan} set enable_hashjoin = on as $$
declare
    v_ids uuid[] := meant(p_ids);
    v_wanted uuid[];
    v_waiting uuid[];
    v_locked uuid[];
    v_keys text[] := keys_of(v_ids);
begin
    -- A key without a holder gets a row, too: the step that follows may need it, and writes its final holder.
    insert into job_key as k (queue, key, holder)
    select x.queue, x.key, x.id from (
        select distinct on (s.queue, s.key) s.queue, s.key, s.id from unnest(v_ids) as i(id)
        cross join lateral (select * from job_state t where t.id = i.id and t.key is not null offset 0) s
        order by s.queue, s.key, s.id) x
    order by x.queue, x.key
    on conflict (queue, key) do update set holder = k.holder;
    if p_key is not null then  -- without a row to lock, another call could fill the key before this one writes it
        insert into job_key as k (queue, key, holder) values (p_queue, p_key, '00000000-0000-0000-0000-000000000000')
        on conflict (queue, key) do update set holder = k.holder;
    end if;
    v_wanted := with_links(v_ids, p_queue, p_key);
    v_waiting := array(
        select s.id from unnest(v_wanted) as i(id)
        cross join lateral (select * from job_state k where k.id = i.id and k.state = 0 offset 0) s
        cross join lateral (
            select from waiting w where w.queue = s.queue and w.lane = s.lane and w.rank = s.rank
            and w.eligible_at = s.eligible_at and w.seq = s.seq for update offset 0) w);
    v_locked := array(
        select s.id from unnest(v_wanted) as i(id)
        cross join lateral (select k.id from job_state k where k.id = i.id for update offset 0) s);
    if meant(p_ids) <> v_ids or keys_of(v_ids) <> v_keys or with_links(v_ids, p_queue, p_key) <> v_wanted or exists (
        select from unnest(v_wanted) as i(id)
        cross join lateral (select from job k where k.id = i.id offset 0) j
        left join lateral (select k.state from job_state k where k.id = i.id offset 0) s on true
        where i.id <> all (v_locked) or s.state = 0 and i.id <> all (v_waiting))
    then
        raise exception 'a job has moved' using errcode = 'TH001';
    end if;
    return v_locked;
end $$;
