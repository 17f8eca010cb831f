-- Whether an update resets the counts, by its flags: '1' or '0'. As `Update.resets_counts` in model/job.py.
create or replace function {schema}.resets_counts(p_flags text) returns text
language sql immutable set search_path = {schema}, pg_temp as $$
    select case substr(p_flags, 4, 1) when '-' then substr(p_flags, 1, 1) else substr(p_flags, 4, 1) end
$$;
