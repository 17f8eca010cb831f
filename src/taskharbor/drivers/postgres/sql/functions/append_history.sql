-- append_history: the last ten attempts, as `settled` in model/transitions.py keeps them.
create or replace function {schema}.append_history(p_history json, p_entry json) returns json
language sql immutable set search_path = {schema}, pg_temp as $$
    select json_agg(e.value order by e.no) from (
        select t.value, t.no from json_array_elements(coalesce(p_history, '[]'::json)) with ordinality as t(value, no)
        union all
        select p_entry, 1000) e
    where e.no > coalesce(json_array_length(p_history), 0) - 9
$$;
