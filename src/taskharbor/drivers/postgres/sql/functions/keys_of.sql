-- keys_of: the keys of these jobs, as texts to compare.
create or replace function {schema}.keys_of(p_ids uuid[]) returns text[]
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    return array(
        select distinct s.queue || '/' || encode(s.key, 'hex') from unnest(p_ids) as i(id)
        cross join lateral (select k.queue, k.key from job_state k where k.id = i.id and k.key is not null offset 0) s
        order by 1);
end $$;
