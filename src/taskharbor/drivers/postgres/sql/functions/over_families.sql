-- over_families: those of these parents that have no open children left, but are not over.
create or replace function {schema}.over_families(p_ids uuid[]) returns setof text
language plpgsql stable set search_path = {schema}, pg_temp {plan} as $$
begin
    return query
    select i.id::text from unnest(p_ids) as i(id)
    cross join lateral (
        select from family f where f.id = i.id and f.is_open
        and coalesce((f.family ->> 'open')::bigint, 0) <= (select sum(t.ended) from stripe t where t.parent = i.id) offset 0) f;
end $$;
