-- with_linked: these jobs, those of these keys, and every other that a step of one of them may concern, by id.
create or replace function {schema}.with_linked(p_ids uuid[], p_queues text[], p_keys bytea[]) returns uuid[]
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    return array(
        select i.id from unnest(p_ids) as i(id)
        union
        select t.id from unnest(p_ids) as i(id)
        cross join lateral (select k.speculates_on from job k where k.id = i.id offset 0) j
        cross join lateral (
            (select o.id from job o where o.id = j.speculates_on offset 0)
            union all
            (select c.id from job c where c.speculates_on = coalesce(j.speculates_on, i.id) offset 0)) t
        union
        select h.id from (
            select n.queue, n.key from unnest(p_queues, p_keys) as n(queue, key)
            union all
            select s.queue, s.key from unnest(p_ids) as i(id)
            cross join lateral (select * from job_state t where t.id = i.id offset 0) s) q
        cross join lateral (
            select u.id from job_key k cross join unnest(array[k.holder, k.next]) as u(id)
            where k.queue = q.queue and k.key = q.key and u.id is not null offset 0) h
        order by 1);
end $$;
