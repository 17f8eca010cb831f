create or replace function {schema}.unwatch(p_line text, p_place integer) returns boolean
language plpgsql set search_path = {schema}, pg_temp as $$
begin
    return pg_advisory_unlock(lock_id('watch', p_line, p_place::text::bytea));
end $$;
