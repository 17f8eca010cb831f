-- forget: delete these jobs with everything that leads to them but keys and idempotency keys; how many there were.
create or replace function {schema}.forget(p_ids uuid[]) returns integer
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_count integer;
begin
    with gone as (
        delete from waiting where ctid = any (array(
            select w.ctid from unnest(p_ids) as i(id)
            cross join lateral (select * from job_state k where k.id = i.id and k.state = 0 offset 0) s
            cross join lateral (
                select k.ctid from waiting k where k.queue = s.queue and k.lane = s.lane and k.rank = s.rank
                and k.eligible_at = s.eligible_at and k.seq = s.seq offset 0) w))
        returning *
    )
    insert into tally_change (queue, lane, rank, slice, change)
    select g.queue, g.lane, g.rank, case when g.is_timed then slice_of(g.eligible_at) else '-infinity' end, -count(*)
    from gone g where not g.is_copy group by 1, 2, 3, 4;
    delete from alias where ctid = any (array(
        select a.ctid from unnest(p_ids) as i(id)
        cross join lateral (select b.ctid from alias b where b.target = i.id offset 0) a));
    delete from job_history where ctid = any (array(
        select h.ctid from unnest(p_ids) as i(id)
        cross join lateral (select k.ctid from job_history k where k.id = i.id offset 0) h));
    delete from job_state where ctid = any (array(
        select s.ctid from unnest(p_ids) as i(id)
        cross join lateral (select k.ctid from job_state k where k.id = i.id offset 0) s));
    get diagnostics v_count = row_count;
    delete from job where ctid = any (array(
        select j.ctid from unnest(p_ids) as i(id)
        cross join lateral (select k.ctid from job k where k.id = i.id offset 0) j));
    return v_count;
end $$;
