-- settle_or_leave: `settle_attempts` inside a transaction that goes on. A job of a family is left, untouched, to a step that begins
-- with the lock of its tree. What else it cannot settle it has perhaps waited for, and a row that was waited for stays
-- locked. The step that follows takes locks in their order, so those are released here.
create or replace function {schema}.settle_or_leave(
    p_now timestamptz, p_ids uuid[], p_leases smallint[], p_tokens uuid[], p_workers text[], p_marks boolean[],
    p_results bytea[], p_others json,
    out o_at timestamptz, out o_done integer[], out o_states smallint[], out o_versions integer[])
language plpgsql set search_path = {schema}, pg_temp as $$
begin
    if has_families(p_ids) then
        o_done := '{}';
        return;
    end if;
    select s.o_at, s.o_done, s.o_states, s.o_versions into o_at, o_done, o_states, o_versions
    from settle_attempts(p_now, p_ids, p_leases, p_tokens, p_workers, p_marks, p_results, p_others) s;
    if cardinality(o_done) = 0 then
        raise exception 'not settled' using errcode = 'TH002';
    end if;
exception when sqlstate 'TH002' then  -- every lock since `begin` is released
    o_done := '{}';
end $$;
