-- leave_keys: the holders of these keys, whose rows the caller has locked, have ended. A key that no job has any more is deleted.
create or replace function {schema}.leave_keys(p_now timestamptz, p_rows tid[], p_nexts uuid[]) returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_gone tid[];
    v_rows tid[];
    v_nexts uuid[];
begin
    select array_agg(k.row) filter (where k.next is null), array_agg(k.row) filter (where k.next is not null),
           array_agg(k.next) filter (where k.next is not null)
    into v_gone, v_rows, v_nexts from unnest(p_rows, p_nexts) as k(row, next);
    if v_gone is not null then
        delete from job_key where ctid = any (v_gone);
    end if;
    if v_rows is not null then
        perform follow(p_now, v_rows, v_nexts);
    end if;
end $$;
