-- has_families: whether one of these jobs, or the original of one of them, is of a family.
create or replace function {schema}.has_families(p_ids uuid[]) returns boolean
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    return exists (
        select from unnest(p_ids) as i(id)
        left join lateral (select b.target from alias b where b.id = i.id offset 0) a on true
        cross join lateral (select k.id, k.link_flags from job_state k where k.id = coalesce(a.target, i.id) offset 0) s
        where s.link_flags & 96 <> 0 or s.link_flags & 4 <> 0 and exists (
            select from (select k.speculates_on from job k where k.id = s.id offset 0) j
            cross join lateral (select from job_state k where k.id = j.speculates_on and k.link_flags & 96 <> 0 offset 0) o));
end $$;
