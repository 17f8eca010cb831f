-- How long until p_wanted more fit, in microseconds; 0 when they fit now. As `Window` in model/limits.py.
create or replace function {schema}.budget_wait(
    p_kind text, p_name text, p_count integer, p_us bigint, p_wanted integer, p_now timestamptz)
returns bigint language plpgsql set search_path = {schema}, pg_temp as $$
declare
    v_behind timestamptz := budget_behind(p_kind, p_name, p_us, p_now);
begin
    return coalesce((
        select greatest((extract(epoch from s.at - p_now) * 1000000)::bigint + p_us, 0)
        from (select e.at, sum(e.count) over (order by e.at) as freed, sum(e.count) over () as spent
              from (select case when at >= after(v_behind, p_us) then v_behind else at end as at, count from rate_usage
                    where kind = p_kind and name = p_name and at > after(p_now, -p_us)) e) s
        -- A rate that was lowered may be spent more than once over.
        where p_wanted + s.spent > p_count and s.freed >= p_wanted + s.spent - p_count
        order by s.at limit 1), 0);
end $$;
