-- A part of `absorb` in model/transitions.py.
create or replace function {schema}.chosen_run_at(p_rule text, p_kept timestamptz, p_new timestamptz, p_now timestamptz)
returns timestamptz language sql immutable set search_path = {schema}, pg_temp as $$
    select case p_rule
        when '1' then p_new
        when '0' then p_kept
        when 'L' then case when coalesce(p_new, p_now) > coalesce(p_kept, p_now) then p_new else p_kept end
        else case when coalesce(p_new, p_now) < coalesce(p_kept, p_now) then p_new else p_kept end
    end
$$;
