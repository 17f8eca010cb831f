-- fold_tallies: add differences up, up to three thousand at once; how many there were. Of some hundreds of writers one calls it.
-- Who finds that another session folds leaves it to that one, so nobody waits.
create or replace function {schema}.fold_tallies() returns integer
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_rows tid[];
    v_empty tid[];
begin
    -- What others have folded since a transaction began cannot be seen, and deleted again, in one that looks at one snapshot.
    if current_setting('transaction_isolation') <> 'read committed' or not pg_try_advisory_xact_lock(lock_id('tally', '')) then
        return 0;
    end if;
    v_rows := array(select c.ctid from tally_change c limit 3000);
    with gone as (
        delete from tally_change c where c.ctid = any (v_rows) returning c.*
    ), summed as (
        insert into tally as t (queue, state, lane, rank, slice, count)
        select g.queue, g.state, g.lane, g.rank, g.slice, sum(g.change) from gone g
        group by 1, 2, 3, 4, 5 having sum(g.change) <> 0
        on conflict (queue, state, lane, rank, slice) do update set count = t.count + excluded.count
        returning t.ctid as row, t.count
    )
    select array_agg(s.row) into v_empty from summed s where s.count = 0;
    delete from tally t where t.ctid = any (v_empty);
    return cardinality(v_rows);
end $$;
