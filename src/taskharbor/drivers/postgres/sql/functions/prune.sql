-- prune: forget finished jobs whose retention is over, and idempotency keys a day after their job's end. It folds the tallies, too,
-- and once a day it counts all jobs again. What is kept for how long: `retention_of` in model/queue.py, `end` in drivers/lifecycle.py.
create or replace function {schema}.prune(p_now timestamptz, p_limit integer) returns integer
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_queue text;
    v_state smallint;
    v_keep bigint;
    v_row record;
    v_ids uuid[];
    v_pruned integer := 0;
    v_counted integer;  -- how many jobs that are counted have gone out of `finished`
begin
    delete from idempotency where ctid = any (array(
        select ctid from idempotency where ends_at is not null and ends_at <= v_now
        order by ends_at limit p_limit for update skip locked));
    delete from rate_usage where ctid = any (array(
        select ctid from rate_usage where until <= v_now limit p_limit for update skip locked));
    delete from handed_back where ctid = any (array(
        select ctid from handed_back where at < clock_timestamp() - interval '1 minute' order by no limit p_limit
        for update skip locked));
    delete from log where ctid = any (array(
        select ctid from log where until <= v_now order by until limit p_limit for update skip locked));
    delete from worker where expires_at <= v_now - interval '1 day';
    select min(f.queue) into v_queue from finished f;
    while v_queue is not null and v_pruned < p_limit loop
        for v_state in 4 .. 6 loop
            v_keep := retention(v_queue, v_state);
            continue when v_keep is null;
            v_counted := 0;
            for v_row in
                select f.ctid as row, f.ids, f.is_copy from finished f
                where f.queue = v_queue and f.state = v_state and f.at <= after(v_now, -v_keep)
                order by f.at limit p_limit - v_pruned for update skip locked
            loop
                exit when v_pruned >= p_limit;
                v_ids := array(  -- one that somebody requeues this moment stays
                    select s.id from unnest(v_row.ids) as i(id)
                    cross join lateral (select k.id from job_state k where k.id = i.id for update skip locked offset 0) s
                    limit p_limit - v_pruned);
                continue when cardinality(v_ids) = 0 and exists (
                    select from unnest(v_row.ids) as i(id) cross join lateral (select from job_state k where k.id = i.id offset 0) s);
                if cardinality(v_ids) in (0, cardinality(v_row.ids)) then
                    delete from finished where ctid = v_row.row;
                    v_counted := v_counted + case when v_row.is_copy then 0 else cardinality(v_row.ids) end;
                else
                    v_counted := v_counted + case when v_row.is_copy then 0 else cardinality(v_ids) end;
                    update finished set ids = array(select i.id from unnest(v_row.ids) as i(id) where i.id <> all (v_ids))
                    where ctid = v_row.row;
                end if;
                v_pruned := v_pruned + forget(v_ids);
            end loop;
            insert into tally_change (queue, state, change) select v_queue, v_state, -v_counted where v_counted > 0;
        end loop;
        select min(f.queue) into v_queue from finished f where f.queue > v_queue;
    end loop;
    while fold_tallies() = 3000 loop
    end loop;
    update tally_recount set due_at = clock_timestamp() + interval '1 day' where ctid = any (array(
        select ctid from tally_recount where due_at <= clock_timestamp() for update skip locked));
    if found then
        perform recount_tallies();
    end if;
    return v_pruned;
end $$;
