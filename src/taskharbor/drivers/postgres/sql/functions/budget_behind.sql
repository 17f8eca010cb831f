-- A clock that goes back meets entries of its future. They count, so that nothing is given twice, until p_us after the
-- clock was first seen behind them; a row of the kind `behind` remembers when that was. Answers it, or null.
-- Callers hold the lock of the budget. As `Window` in model/limits.py.
create or replace function {schema}.budget_behind(p_kind text, p_name text, p_us bigint, p_now timestamptz)
returns timestamptz language plpgsql set search_path = {schema}, pg_temp as $$
declare
    v_name text := p_kind || '/' || p_name;
    v_since timestamptz;
begin
    if not exists (select from rate_usage s where s.kind = p_kind and s.name = p_name and s.at > p_now) then
        if exists (select from rate_usage s where s.kind = 'behind' and s.name = v_name) then
            delete from rate_usage where kind = 'behind' and name = v_name;
        end if;
        return null;
    end if;
    select max(s.at) into v_since from rate_usage s where s.kind = 'behind' and s.name = v_name;
    if v_since is null or v_since > p_now then
        delete from rate_usage where kind = 'behind' and name = v_name;
        insert into rate_usage values ('behind', v_name, p_now, 0, after(p_now, 2 * p_us));
        return p_now;
    elsif p_now >= after(v_since, p_us) then
        delete from rate_usage where kind = p_kind and name = p_name and at > p_now;
        delete from rate_usage where kind = 'behind' and name = v_name;
        return null;
    end if;
    return v_since;
end $$;
