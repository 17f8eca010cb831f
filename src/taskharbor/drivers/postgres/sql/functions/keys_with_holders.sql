-- keys_with_holders: these keys and those of these jobs, with holder and next.
create or replace function {schema}.keys_with_holders(p_ids uuid[], p_queues text[], p_keys bytea[]) returns json
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    return (
        select json_agg(json_build_array(k.queue, encode(k.key, 'hex'), k.holder, k.next)) from (
            select distinct q.queue, q.key from (
                select s.queue, s.key from unnest(p_ids) as i(id)
                cross join lateral (select * from job_state t where t.id = i.id offset 0) s
                union all select n.queue, n.key from unnest(p_queues, p_keys) as n(queue, key)) q where q.key is not null) x
        cross join lateral (select * from job_key t where t.queue = x.queue and t.key = x.key offset 0) k);
end $$;
