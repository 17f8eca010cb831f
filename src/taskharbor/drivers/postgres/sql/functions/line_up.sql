-- line_up: put those of these jobs that wait into `waiting`. What waits again comes before younger jobs that others may
-- be taking this moment: `handed_back` sends their claims there.
create or replace function {schema}.line_up(p_ids uuid[], p_now timestamptz) returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    with line as (
        insert into waiting as w (seq, eligible_at, id, rank, is_timed, is_copy, has_run, queue, lane, line)
        select s.seq, s.eligible_at, s.id, s.rank, s.is_timed, s.link_flags & 4 <> 0, s.starts > 0 or s.link_flags & 32 <> 0, s.queue, s.lane,
               s.queue || '/' || s.lane || '/' || j.type
        from unnest(p_ids) as i(id)
        cross join lateral (select * from job_state k where k.id = i.id and k.state = 0 offset 0) s
        cross join lateral (select k.type from job k where k.id = i.id offset 0) j
        returning w.*
    )
    insert into tally_change (queue, lane, rank, slice, change)
    select l.queue, l.lane, l.rank, case when l.is_timed then slice_of(l.eligible_at) else '-infinity' end, count(*)
    from line l where not l.is_copy group by 1, 2, 3, 4;
    insert into handed_back (queue)
    select distinct s.queue from unnest(p_ids) as i(id)
    cross join lateral (
        select k.queue from job_state k where k.id = i.id and k.state = 0 and k.version > 1 and k.eligible_at <= p_now
        offset 0) s;
end $$;
