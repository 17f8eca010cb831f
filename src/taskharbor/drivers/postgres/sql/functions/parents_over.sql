-- parents_over: of the parents behind p_after at which children are counted, as many as p_limit, those that nothing but a judgement
-- is missing to, as `may_be_seen_over` in model/family_steps.py. With the last parent looked at; null: there are none behind it.
create or replace function {schema}.parents_over(p_after uuid, p_limit integer) returns table (o_over text[], o_last text)
language plpgsql stable set search_path = {schema}, pg_temp {plan} as $$
declare
    v_parents uuid[] := array(
        with recursive p(id) as (
            (select t.parent from stripe t where p_after is null or t.parent > p_after order by t.parent limit 1)
            union all
            select (select t.parent from stripe t where t.parent > p.id order by t.parent limit 1) from p where p.id is not null)
        select p.id from p where p.id is not null limit p_limit);
begin
    return query select array(
        select i.id::text from unnest(v_parents) as i(id)
        cross join lateral (
            select from family f where f.id = i.id and f.is_open and f.is_blocked and (f.family ->> 'is_done')::boolean
            and (coalesce((f.family ->> 'waits_for')::integer, 0) = 0 or f.is_stopping)
            and coalesce((f.family ->> 'open')::bigint, 0) <= (select sum(t.ended) from stripe t where t.parent = i.id) offset 0) f),
        case when cardinality(v_parents) >= p_limit then v_parents[p_limit]::text end;
end $$;
