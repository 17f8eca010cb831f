-- watch: of the idle sessions that wait for the same work, notify a few; the others find what those leave.
-- A place is held until `unwatch` or the end of the session. Returns the number of the place, or null.
create or replace function {schema}.watch(p_line text) returns integer
language plpgsql set search_path = {schema}, pg_temp as $$
begin
    for i in 1 .. 2 loop
        if pg_try_advisory_lock(lock_id('watch', p_line, i::text::bytea)) then
            return i;
        end if;
    end loop;
    return null;
end $$;
