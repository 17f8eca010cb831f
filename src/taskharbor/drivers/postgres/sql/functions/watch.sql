-- watch: of the idle sessions that wait for the same work, let a few be told of it; the others find what those leave.
-- The place is held until it is given back or the session ends. Answers which of them it is, or null.
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
