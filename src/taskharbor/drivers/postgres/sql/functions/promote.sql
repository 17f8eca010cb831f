-- promote: wake idle workers where a scheduled job has fallen due. Nothing has to be moved: a claim finds due jobs itself.
create or replace function {schema}.promote(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    perform wake(array(
        select q.queue from idle_queue q where exists (
            with recursive l(lane, rank) as (  -- one probe per lane and rank
                (select w.lane, w.rank from waiting w where w.queue = q.queue order by w.lane, w.rank limit 1)
                union all
                select n.lane, n.rank from l cross join lateral (
                    select w.lane, w.rank from waiting w
                    where w.queue = q.queue and (w.lane, w.rank) > (l.lane, l.rank) order by w.lane, w.rank limit 1) n)
            select from l cross join lateral (
                select from waiting w where w.queue = q.queue and w.lane = l.lane and w.rank = l.rank
                and w.eligible_at <= v_now limit 1) d)
        limit p_limit));
    return 0;
end $$;
