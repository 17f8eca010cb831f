-- more_families: further jobs for a step that began with `lock_families`. Those of trees that it has locked (p_held) are
-- locked, too; others are only read. A key is locked. First a row with the keys, then a row for each job.
create or replace function {schema}.more_families(p_ids uuid[], p_held uuid[], p_queue text, p_key bytea) returns setof text
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_mine uuid[] := array(
        select i.id from unnest(p_ids) as i(id)
        cross join lateral (select k.root, k.parent from job k where k.id = i.id offset 0) j
        left join lateral (select k.root from family k where k.id = i.id offset 0) f on true
        where coalesce(f.root, j.root, j.parent) = any (p_held));
    v_locked uuid[] := '{}';
begin
    if cardinality(v_mine) > 0 or p_key is not null then
        for v_try in 1 .. 1000 loop
            begin
                v_locked := lock_trees(v_mine, p_held, p_queue, p_key);
                exit;
            exception when sqlstate 'TH001' then
                v_locked := null;
            end;
        end loop;
        if v_locked is null then
            raise exception 'these jobs never stop moving' using errcode = '40001';
        end if;
    end if;
    return next json_build_array(family_keys(v_locked, p_queue, p_key))::text;
    return query select * from family_jobs(v_locked, true);
    return query select * from family_jobs(array(select i.id from unnest(p_ids) as i(id) where i.id <> all (v_locked)), false);
end $$;
