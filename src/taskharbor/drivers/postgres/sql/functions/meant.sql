-- meant: the jobs that ids lead to, one each.
create or replace function {schema}.meant(p_ids uuid[]) returns uuid[]
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    return array(
        select coalesce(a.target, i.id) from unnest(p_ids) with ordinality as i(id, ord)
        left join lateral (select b.target from alias b where b.id = i.id offset 0) a on true
        order by i.ord);
end $$;
