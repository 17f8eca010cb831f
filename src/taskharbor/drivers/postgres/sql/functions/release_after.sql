-- release_after: what the success of these jobs, whose tree the caller has locked, does to the jobs that come after them or are parked for
-- them; as `_release_after` and `release` in drivers/families.py. What is not simply counted or released is owed: a skip, a job done
-- by others, a row that somebody has.
--   o_open: parents that are not over by this, because a child that waited is open, or they themselves go on. o_owes: is something owed?
create or replace function {schema}.release_after(p_now timestamptz, p_causes uuid[], out o_open uuid[], out o_owes boolean)
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v record;
begin
    with d as materialized (
        select e.dependent, e.is_park, count(*)::integer as count from unnest(p_causes) as i(id)
        cross join lateral (select k.dependent, k.is_park from edge k where k.dep = i.id offset 0) e group by 1, 2
    ), b as materialized (  -- those that wait for them
        select d.dependent as id, d.is_park, f.parent, f.bonds, f.parked, coalesce((f.family ->> 'waits_for')::integer, 0) - d.count as left,
               l.is_mine is not true as is_busy
        from d
        cross join lateral (select k.id from job_state k where k.id = d.dependent and k.state = 2 offset 0) s
        cross join lateral (
            select k.parent, k.bonds, k.parked, k.family from family k
            where k.id = d.dependent and not k.is_stopping and (k.parked is not null) = d.is_park
              and coalesce((k.family ->> 'waits_for')::integer, 0) > 0 offset 0) f
        left join lateral (
            select true as is_mine from job_state k where k.id = d.dependent and k.state = 2 for update skip locked offset 0) l on true
    ), w as materialized (  -- what each of them waits for still, and whether it goes on as it should
        select b.*, case when b.left > 0 or b.is_busy then b.left else o.missing end as missing,
               b.left <= 0 and not b.is_park and (
                   coalesce(b.bonds ->> 'done_by', 'worker') <> 'worker' or coalesce(b.bonds ->> 'when', 'success') = 'failure'
                   or coalesce(b.bonds ->> 'when', 'success') = 'success' and o.is_bad) as is_other
        from b cross join lateral (
            select count(*) filter (where s.state < 4)::integer as missing, coalesce(bool_or(s.state > 4), false) as is_bad
            from unnest(case when b.is_park then b.parked
                             when b.left <= 0 then array(select json_array_elements_text(b.bonds -> 'after')::uuid) end) as n(id)
            cross join lateral (select k.state from job_state k where k.id = n.id offset 0) s) o
    )
    select array_agg(w.id) filter (where w.is_busy or w.is_other) as others,
           array_agg(w.id) filter (where not w.is_busy and not w.is_other) as ids,
           array_agg(w.missing) filter (where not w.is_busy and not w.is_other) as counts,
           array_agg(w.id) filter (where not w.is_busy and not w.is_other and w.missing = 0) as released,
           array_agg(w.id) filter (where not w.is_busy and not w.is_other and w.missing = 0 and w.is_park) as unparked,
           array_agg(distinct case when w.is_park then w.id else w.parent end) filter (where not w.is_busy and not w.is_other) as open
    into v from w;
    o_open := coalesce(v.open, '{}');
    o_owes := v.others is not null;
    if v.others is not null then
        insert into owed (kind, job_id)
        select 'release', e.dep from (
            select distinct i.id as dep from unnest(p_causes) as i(id)
            cross join lateral (select k.dependent from edge k where k.dep = i.id offset 0) d where d.dependent = any (v.others)) e;
    end if;
    if v.ids is not null then
        update family f set
            family = jsonb_set(f.family::jsonb, '{waits_for}', to_jsonb(i.count))::json, is_blocked = i.count > 0,
            parked = case when i.count > 0 then f.parked end
        from unnest(v.ids, v.counts) as i(id, count) where f.id >= i.id and f.id <= i.id;
    end if;
    if v.released is not null then
        update job_state s set state = 0, version = s.version + 1, updated_at = p_now
        from unnest(v.released) as i(id) where s.id >= i.id and s.id <= i.id;
        if v.unparked is not null then
            delete from edge where ctid = any (array(
                select e.ctid from unnest(v.unparked) as i(id)
                cross join lateral (select k.ctid from edge k where k.dependent = i.id and k.is_park offset 0) e));
        end if;
        perform line_up(v.released, p_now);
        perform wake(array(
            select distinct s.queue from unnest(v.released) as i(id)
            cross join lateral (select k.queue from job_state k where k.id = i.id and k.eligible_at <= p_now offset 0) s));
    end if;
end $$;
