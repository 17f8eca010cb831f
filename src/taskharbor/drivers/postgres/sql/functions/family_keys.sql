-- family_keys: the keys of these jobs, and one more, with holder and next.
create or replace function {schema}.family_keys(p_ids uuid[], p_queue text, p_key bytea) returns json
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    return (
        select json_agg(json_build_array(k.queue, encode(k.key, 'hex'), k.holder, k.next)) from (
            select distinct q.queue, q.key from (
                select s.queue, s.key from unnest(p_ids) as i(id)
                cross join lateral (select * from job_state t where t.id = i.id offset 0) s
                union all select p_queue, p_key) q where q.key is not null) x
        cross join lateral (select * from job_key t where t.queue = x.queue and t.key = x.key offset 0) k);
end $$;
