-- with_parents: these jobs, the originals of those that are copies, and all their parents up to the roots.
create or replace function {schema}.with_parents(p_ids uuid[]) returns uuid[]
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    return array(
        with recursive up(id) as (
            (select i.id from unnest(p_ids) as i(id)
             union
             select j.speculates_on from unnest(p_ids) as i(id)
             cross join lateral (select k.speculates_on from job k where k.id = i.id and k.speculates_on is not null offset 0) j)
            union
            select j.parent from up
            cross join lateral (select k.parent from job k where k.id = up.id and k.parent is not null offset 0) j)
        select up.id from up);
end $$;
