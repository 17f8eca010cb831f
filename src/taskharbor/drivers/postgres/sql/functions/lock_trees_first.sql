-- lock_trees_first: one try to lock these jobs with their parents, and before them their trees: the row of a root in `family` is the
-- lock of its tree. TH001: a job has moved, or got a family, while this waited.
create or replace function {schema}.lock_trees_first(p_ids uuid[], p_queues text[], p_keys bytea[]) returns uuid[]
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_roots uuid[] := family_roots(p_ids);
    v_locked uuid[];
begin
    perform from unnest(v_roots) as i(id)
    cross join lateral (select from family k where k.id = i.id for update offset 0) f;
    v_locked := lock_in_order(with_parents(p_ids), p_queues, p_keys, true);
    if not family_roots(v_locked) <@ v_roots then
        raise exception 'a job has a family now' using errcode = 'TH001';
    end if;
    return v_locked;
end $$;
