-- family_more: what a claim hands out with a job of a family: root, bonds, counts and notes.
create or replace function {schema}.family_more(p_id uuid) returns json
language plpgsql stable set search_path = {schema}, pg_temp {plan} as $$
begin
    return (
        select json_build_array(f.root, f.bonds::text, family_now(f.id, f.family), (
            select json_agg(json_build_array(n.name, encode(n.data, 'hex'), micros(n.at)) order by n.no) from note n where n.id = p_id))
        from family f where f.id = p_id);
end $$;
