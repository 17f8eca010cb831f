-- family_roots: the roots of the families that these jobs are of; of a copy those of its original.
create or replace function {schema}.family_roots(p_ids uuid[]) returns uuid[]
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    return array(
        select distinct coalesce(f.root, o.root, o.parent) as root from unnest(p_ids) as i(id)
        cross join lateral (select k.speculates_on from job k where k.id = i.id offset 0) j
        cross join lateral (select k.id, k.root, k.parent from job k where k.id = coalesce(j.speculates_on, i.id) offset 0) o
        left join lateral (select k.root from family k where k.id = o.id offset 0) f on true
        where coalesce(f.root, o.root, o.parent) is not null
        order by 1);
end $$;
