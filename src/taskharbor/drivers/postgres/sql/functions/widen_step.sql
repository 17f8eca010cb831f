-- widen_step: further jobs for a step that began with `lock_step`. Those of trees that it has locked (p_held) are locked, too; others
-- are only read. A first row, then a row for each job.
--   p_waits false: a step that waited here could wait for one that waits for it, because it has rows that come after these. So it
--   does not: without a first row somebody has one of these, and the step must let go of all it has and begin again with them.
create or replace function {schema}.widen_step(p_ids uuid[], p_held uuid[], p_waits boolean) returns setof text
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_mine uuid[] := array(
        select i.id from unnest(p_ids) as i(id)
        cross join lateral (select k.root, k.parent from job k where k.id = i.id offset 0) j
        left join lateral (select k.root from family k where k.id = i.id offset 0) f on true
        where coalesce(f.root, j.root, j.parent) = any (p_held));
    v_locked uuid[] := '{}';
begin
    if cardinality(v_mine) > 0 then
        begin
            v_locked := lock_in_order(v_mine, null, null, p_waits);
        exception when sqlstate 'TH001' then
            raise exception 'these jobs are moving' using errcode = '40001';
        end;
        if v_locked is null or not family_roots(v_locked) <@ p_held then
            return;
        end if;
    end if;
    return next json_build_array(keys_with_holders(v_locked, null, null))::text;
    return query select * from family_jobs(v_locked, true);
    return query select * from family_jobs(array(select i.id from unnest(p_ids) as i(id) where i.id <> all (v_locked)), false);
end $$;
