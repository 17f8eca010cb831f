-- lock_in_order: one try to lock these jobs and keys with all that a step of them can concern: keys, then rows of `waiting`, then of
-- `job_state`. TH001: a job has moved while this waited for a lock.
--   p_waits false: wait for nothing, because the caller has rows that may come after these; null: somebody has one of them.
create or replace function {schema}.lock_in_order(p_ids uuid[], p_queues text[], p_keys bytea[], p_waits boolean) returns uuid[]
language plpgsql set search_path = {schema}, pg_temp {plan} set enable_hashjoin = on as $$
declare
    v_ids uuid[] := meant(p_ids);
    v_wanted uuid[];
    v_waiting uuid[];
    v_locked uuid[];
    v_keys text[] := keys_of(v_ids);
begin
    if not p_waits and (cardinality(v_keys) > 0 or cardinality(p_keys) > 0) then
        return null;  -- a row that is perhaps inserted cannot be locked without waiting
    end if;
    -- A key without a holder gets a row, too: the step that follows may need it, and writes its final holder. Without a row to lock,
    -- another call could fill the key before this one writes it.
    insert into job_key as k (queue, key, holder)
    select x.queue, x.key, x.id from (
        select distinct on (q.queue, q.key) q.queue, q.key, q.id from (
            select s.queue, s.key, s.id from unnest(v_ids) as i(id)
            cross join lateral (select * from job_state t where t.id = i.id and t.key is not null offset 0) s
            union all
            select n.queue collate "C", n.key, 'ffffffff-ffff-ffff-ffff-ffffffffffff' from unnest(p_queues, p_keys) as n(queue, key)) q
        order by q.queue, q.key, q.id) x
    order by x.queue, x.key
    on conflict (queue, key) do update set holder = k.holder;
    v_wanted := with_linked(v_ids, p_queues, p_keys);
    if p_waits then
        v_waiting := array(
            select s.id from unnest(v_wanted) as i(id)
            cross join lateral (select * from job_state k where k.id = i.id and k.state = 0 offset 0) s
            cross join lateral (
                select from waiting w where w.queue = s.queue and w.lane = s.lane and w.rank = s.rank
                and w.eligible_at = s.eligible_at and w.seq = s.seq for update offset 0) w);
        v_locked := array(
            select s.id from unnest(v_wanted) as i(id)
            cross join lateral (select k.id from job_state k where k.id = i.id for update offset 0) s);
    else
        v_waiting := array(
            select s.id from unnest(v_wanted) as i(id)
            cross join lateral (select * from job_state k where k.id = i.id and k.state = 0 offset 0) s
            cross join lateral (
                select from waiting w where w.queue = s.queue and w.lane = s.lane and w.rank = s.rank
                and w.eligible_at = s.eligible_at and w.seq = s.seq for update skip locked offset 0) w);
        v_locked := array(
            select s.id from unnest(v_wanted) as i(id)
            cross join lateral (select k.id from job_state k where k.id = i.id for update skip locked offset 0) s);
    end if;
    if meant(p_ids) <> v_ids or keys_of(v_ids) <> v_keys or with_linked(v_ids, p_queues, p_keys) <> v_wanted or exists (
        select from unnest(v_wanted) as i(id)
        cross join lateral (select from job k where k.id = i.id offset 0) j
        left join lateral (select k.state from job_state k where k.id = i.id offset 0) s on true
        where i.id <> all (v_locked) or s.state = 0 and i.id <> all (v_waiting))
    then
        if not p_waits then
            return null;
        end if;
        raise exception 'a job has moved' using errcode = 'TH001';
    end if;
    return v_locked;
end $$;
