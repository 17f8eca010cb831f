-- count_children: count children that have completed at their parents, in a stripe of this session, and forget those of p_gone.
-- Returns what `count_ends` does.
create or replace function {schema}.count_children(p_ids uuid[], p_gone uuid[]) returns text
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_counted text := count_ends(p_ids, pg_backend_pid() & 63);
begin
    if p_gone is not null then
        perform forget(p_gone);
    end if;
    return v_counted;
end $$;
