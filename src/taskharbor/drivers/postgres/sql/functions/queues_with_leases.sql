-- queues_with_leases: of these queues those where a lease may run out, in no order.
create or replace function {schema}.queues_with_leases(p_queues text[]) returns text[]
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_most integer := least(cardinality(p_queues), 200);
    v_found text[];
begin
    with recursive h(name, no) as (
        select (select min(c.queue) from lease c), 1
        union all
        select (select min(c.queue) from lease c where c.queue > h.name), h.no + 1
        from h where h.name is not null and h.no <= v_most
    )
    select case when max(h.no) <= v_most then coalesce(array_agg(h.name), '{}') end into v_found from h;
    if v_found is null then
        return p_queues;
    end if;
    return array(select f.name from unnest(v_found) as f(name) where array_position(p_queues, f.name) is not null);
end $$;
