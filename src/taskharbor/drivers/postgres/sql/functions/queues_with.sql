-- queues_with: of these queues, in their order, those with waiting jobs, or with leases that may run out. Walks from one
-- queue that has any to the next. Where more than 200 have some, it looks for the jobs of each name, and takes every name
-- for one with leases.
create or replace function {schema}.queues_with(p_what text, p_queues text[]) returns text[]
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_most integer := least(cardinality(p_queues), 200);
    v_found text[];
begin
    with recursive r(name, no) as (
        select ''::text collate "C", 0
        union all
        select case p_what when 'jobs' then (select min(c.queue) from waiting c where c.queue > r.name)
                           else (select min(c.queue) from lease c where c.queue > r.name) end, r.no + 1
        from r where r.name is not null and r.no <= v_most
    )
    select case when max(r.no) <= v_most then coalesce(array_agg(r.name), '{}') end into v_found from r;
    return array(
        select q.name from unnest(p_queues) with ordinality as q(name, ord)
        where case when v_found is not null then q.name = any (v_found)
                   else p_what <> 'jobs' or exists (select from waiting c where c.queue = q.name offset 0) end
        order by q.ord);
end $$;
