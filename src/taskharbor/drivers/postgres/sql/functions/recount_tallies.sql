-- recount_tallies: count all jobs and correct the tallies; how many groups were wrong. All is seen by one statement, and each step notes
-- its differences in its own transaction, so this is right at any moment and stops nobody.
-- None should be wrong. It is for calls that ran while the tallies were introduced, and for rows that somebody deleted by hand.
create or replace function {schema}.recount_tallies() returns integer
language plpgsql set search_path = {schema}, pg_temp as $$
declare
    v_wrong integer;
begin
    perform pg_advisory_xact_lock(lock_id('recount', ''));  -- two would correct the same twice
    with found (queue, state, lane, rank, slice, count) as (
        select w.queue, 0, w.lane, w.rank, case when w.is_timed then slice_of(w.eligible_at) else '-infinity' end, count(*)
        from waiting w where not w.is_copy group by 1, 3, 4, 5
        union all
        select f.queue, f.state, '', 0, '-infinity', sum(cardinality(f.ids)) from finished f where not f.is_copy group by 1, 2
        union all
        select f.queue, 4, '', 0, '-infinity', sum(cardinality(f.ids)) from child_end f group by 1
        union all
        select f.queue, f.state, '', 0, '-infinity', count(*) from family_end f group by 1, 2
        union all
        select t.queue, t.state, t.lane, t.rank, t.slice, -t.count from tally t
        union all
        select c.queue, c.state, c.lane, c.rank, c.slice, -sum(c.change) from tally_change c group by 1, 2, 3, 4, 5
    ), corrected as (
        insert into tally_change (queue, state, lane, rank, slice, change)
        select f.queue, f.state, f.lane, f.rank, f.slice, sum(f.count) from found f group by 1, 2, 3, 4, 5 having sum(f.count) <> 0
        returning 1
    )
    select count(*) into v_wrong from corrected;
    return v_wrong;
end $$;
