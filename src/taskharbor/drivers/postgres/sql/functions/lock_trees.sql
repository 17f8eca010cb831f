-- lock_trees: one try to lock these jobs with their parents, and their families before them: the row of a root in
-- `family` is the lock of its tree. TH001: a job has moved, or got a family, while this waited. p_held: roots that the
-- caller has locked already; then no others are locked.
create or replace function {schema}.lock_trees(p_ids uuid[], p_held uuid[], p_queue text, p_key bytea) returns uuid[]
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_roots uuid[] := p_held;
    v_locked uuid[];
begin
    if p_held is null then
        v_roots := family_roots(p_ids);
        perform from unnest(v_roots) as i(id)
        cross join lateral (select from family k where k.id = i.id for update offset 0) f;
    end if;
    v_locked := locked_if_still(case when p_held is null then with_parents(p_ids) else p_ids end, p_queue, p_key);
    if not family_roots(v_locked) <@ v_roots then
        raise exception 'a job has a family now' using errcode = 'TH001';
    end if;
    return v_locked;
end $$;
