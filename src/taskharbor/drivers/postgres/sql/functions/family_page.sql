-- family_page: ids and numbers of jobs that belong to a job, by number, behind one.
--   p_kind: release (what comes after it), stop (open children), events (those done by a call), children (all of them)
create or replace function {schema}.family_page(p_kind text, p_id uuid, p_seq bigint, p_limit integer)
returns table (o_id text, o_seq bigint)
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    if p_kind = 'release' then
        return query select e.dependent::text, e.seq from edge e where e.dep = p_id and e.seq > p_seq order by e.seq limit p_limit;
    elsif p_kind = 'children' then
        return query select j.id::text, j.seq from job j where j.parent = p_id and j.seq > p_seq order by j.seq limit p_limit;
    elsif p_kind = 'stop' then
        return query select j.id::text, j.seq from job j
        cross join lateral (select from job_state k where k.id = j.id and k.state < 4 offset 0) s
        where j.parent = p_id and j.seq > p_seq order by j.seq limit p_limit;
    else
        return query select f.id::text, f.seq from family f
        where f.parent = p_id and f.is_open and f.is_event and f.seq > p_seq order by f.seq limit p_limit;
    end if;
end $$;
