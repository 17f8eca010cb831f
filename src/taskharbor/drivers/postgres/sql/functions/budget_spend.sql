-- Spend from a budget, as `Window` in model/limits.py.
create or replace function {schema}.budget_spend(p_kind text, p_name text, p_us bigint, p_spent integer, p_now timestamptz)
returns void language plpgsql set search_path = {schema}, pg_temp as $$
begin
    delete from rate_usage where kind = p_kind and name = p_name and at <= after(p_now, -p_us);
    insert into rate_usage values (p_kind, p_name, p_now, p_spent, after(p_now, p_us))
    on conflict (kind, name, at) do update set count = rate_usage.count + excluded.count;
end $$;
