-- queues_with_jobs: of these queues, in their order, those where a job waits. Asked from the side of the jobs; from the
-- side of the names only where many queues have jobs.
create or replace function {schema}.queues_with_jobs(p_queues text[]) returns text[]
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_most integer := least(cardinality(p_queues), 200);
    v_found text[];
begin
    with recursive r(name, no) as (
        select (select min(c.queue) from waiting c), 1
        union all
        select (select min(c.queue) from waiting c where c.queue > r.name), r.no + 1
        from r where r.name is not null and r.no <= v_most
    )
    select case when max(r.no) <= v_most then coalesce(array_agg(r.name), '{}') end into v_found from r;
    if v_found is not null then
        return array(select f.name from unnest(v_found) as f(name) where array_position(p_queues, f.name) is not null
                     order by array_position(p_queues, f.name));
    end if;
    return array(
        select q.name from unnest(p_queues) with ordinality as q(name, ord)
        where exists (select from waiting c where c.queue = q.name offset 0) order by q.ord);
end $$;
