-- How much of a budget is left at p_now, as `Window` in model/limits.py. An entry leaves the window exactly p_us after it was made.
create or replace function {schema}.budget_room(p_kind text, p_name text, p_count integer, p_us bigint, p_now timestamptz)
returns integer language plpgsql set search_path = {schema}, pg_temp as $$
begin
    perform budget_behind(p_kind, p_name, p_us, p_now);
    return (select greatest(p_count - coalesce(sum(s.count), 0), 0)::integer from rate_usage s
            where s.kind = p_kind and s.name = p_name and s.at > after(p_now, -p_us));
end $$;
