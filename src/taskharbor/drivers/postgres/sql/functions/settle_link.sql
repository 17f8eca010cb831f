-- settle_link: `settle_members` for the ack of one link of a chain, and `release_after` for the job that comes after it alone, in the usual
-- case: on its first run, under a parent, no limits or retention to mind.
--   The rules are `settle_one` in drivers/family_verbs.py, `_count_end`, `_release_after` and `release` in drivers/families.py.
--   The tree, the job and the next one are locked, and what is not free is left: this waits for nothing. The parent has an open child
--   afterwards, so nobody need look at it.
--   Returns no version when nothing was done.
create or replace function {schema}.settle_link(
    p_now timestamptz, p_id uuid, p_token uuid, p_worker text, p_result bytea, out o_at timestamptz, out o_version integer)
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_queue text;
begin
    if exists (select from queue_settings r where r.max_running is not null or r.has_retention) then
        return;
    end if;
    perform from family k where k.id = (select f.root from family f where f.id = p_id) for update skip locked;
    if not found then
        return;
    end if;
    o_at := coalesce(p_now, clock_timestamp());
    with own as materialized (
        select s.id, s.seq, s.queue, f.parent
        from (select k.parent from family k
              where k.id = p_id and k.is_open and not k.is_stopping and k.parked is null and (k.family ->> 'followers')::integer = 1
                and coalesce((k.family ->> 'total')::integer, 0) = 0 offset 0) f
        cross join lateral (select from family k where k.id = f.parent and not k.is_stopping offset 0) p
        cross join lateral (
            select k.id, k.seq, k.queue from job_state k
            where k.id = p_id and k.state = 3 and k.link_flags = 32 and k.starts = 1 and not k.cancel_requested and k.token = p_token
              and k.ends_at > o_at and k.worker = coalesce(p_worker, k.worker) and (p_now is not null or k.updated_at <= o_at)
            for update skip locked offset 0) s
    ), next as materialized (
        select s.*, j.type
        from own
        cross join lateral (select k.dependent as id from edge k where k.dep = own.id and not k.is_park offset 0) e
        cross join lateral (
            select from family k
            where k.id = e.id and not k.is_stopping and k.parked is null and (k.family ->> 'waits_for')::integer = 1
              and json_array_length(k.bonds -> 'after') = 1 and coalesce(k.bonds ->> 'done_by', 'worker') = 'worker'
              and coalesce(k.bonds ->> 'when', 'success') <> 'failure' offset 0) f
        cross join lateral (
            select k.id, k.seq, k.queue, k.lane, k.rank, k.eligible_at from job_state k
            where k.id = e.id and k.state = 2 and not k.is_timed and k.eligible_at <= o_at and (p_now is not null or k.updated_at <= o_at)
            for update skip locked offset 0) s
        cross join lateral (select k.type from job k where k.id = s.id offset 0) j
    ), pair as materialized (
        select p_id as id, true as is_own from next union all select next.id, false from next
    ), states as (
        update job_state s set
            state = case when b.is_own then 4 else 0 end, version = s.version + 1, updated_at = o_at,
            ends_at = case when b.is_own then o_at else s.ends_at end, result = case when b.is_own then p_result else s.result end
        from pair b where s.id >= b.id and s.id <= b.id
        returning b.is_own, s.version
    ), counts as (
        update family f set
            is_open = f.is_open and not b.is_own, is_blocked = false, deadline = case when b.is_own then null else f.deadline end,
            family = case when b.is_own then f.family else (f.family::jsonb - 'waits_for')::json end
        from pair b where f.id >= b.id and f.id <= b.id
    ), ended as (
        insert into family_end (id, seq, at, state, is_root, queue)
        select own.id, own.seq, o_at, 4, false, own.queue from own cross join next
    ), counted as (  -- as in `settle_members`: in a stripe that only those write who have the tree
        insert into stripe as t (parent, no, ended) select own.parent, 64, 1 from own cross join next
        on conflict (parent, no) do update set ended = t.ended + 1
    ), hints as (  -- as `drop_hints`
        delete from lease where token = p_token and claimed = 1 and exists (select from next)
    ), line as (  -- as `line_up`
        insert into waiting (seq, eligible_at, id, rank, is_timed, is_copy, has_run, queue, lane, line)
        select n.seq, n.eligible_at, n.id, n.rank, false, false, true, n.queue, n.lane, n.queue || '/' || n.lane || '/' || n.type from next n
    ), tallies as (
        insert into tally_change (queue, lane, rank, state, change)
        select n.queue, n.lane, n.rank, 0, 1 from next n
        union all
        select own.queue, '', 0, 4, 1 from own cross join next
    ), back as (
        insert into handed_back (queue) select next.queue from next
    )
    select s.version, n.queue into o_version, v_queue from states s cross join next n where s.is_own;
    if exists (select from idle_queue h where h.queue = v_queue) then
        perform wake(array[v_queue]);
    end if;
end $$;
