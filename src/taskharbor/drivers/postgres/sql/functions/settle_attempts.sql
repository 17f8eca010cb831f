-- settle_attempts: end attempts whose leases hold. The rules are those of `settled` and `stalled` in model/transitions.py and of
-- `leave` in drivers/lifecycle.py.
--   p_ids: sorted. p_leases: for each the number of its lease in p_tokens, p_workers and p_marks (is it of a job with a
--   key?); null: all have the first. p_results: null when there are none.
--   p_others: what is no ack, as [{ord, kind, delay, run_at, error, trace, failure_kind, attempts, failed_at}], with kind
--   0 park (which is left to the caller), 2 retry, 3 fail, 4 release, 5 cancelled, 6 stalled; null: all are acks, or in a sweep all are stalled.
--   p_tokens null: a sweep. Leases that have run out instead; the caller has locked the rows and their keys.
--   Not done here, for the caller to settle one by one: jobs with copies or of families, children that end otherwise than completed, failures that make a failure job, and whatever
--   somebody else has locked or changed this moment. So this waits for no key, and its instant is behind all it meets.
--   Returns the places of what was done with states (0 scheduled, 1 ready, else as stored) and versions; o_done null: all were acked, to the version o_versions[1].
--   o_merged: the places of those that took over a blocked job. o_counted: as in `count_ends`.
create or replace function {schema}.settle_attempts(
    p_now timestamptz, p_ids uuid[], p_leases smallint[], p_tokens uuid[], p_workers text[], p_marks boolean[],
    p_results bytea[], p_others json,
    out o_at timestamptz, out o_done integer[], out o_states smallint[], out o_versions integer[], out o_merged integer[],
    out o_counted text)
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_count integer := cardinality(p_ids);
    v_sweeps boolean := p_tokens is null;
    v_until timestamptz;
    v_has_settings boolean;
    v_ids uuid[] := p_ids;
    v_key_ids uuid[];       -- jobs whose key is locked, with its row and what is blocked behind it
    v_key_rows tid[];
    v_nexts uuid[];
    v_others integer[] := '{}';  -- places of what is no ack
    v_token uuid := p_tokens[1];
    v_worker text := p_workers[1];
    v_mark boolean := p_marks[1];
    v_part record;
    v_acked uuid[];         -- what the usual way has done,
    v_places integer[];     -- and its places in p_ids
    v_left integer[] := '{}';    -- places of acks that the usual way has left; in a sweep all
    v_children uuid[];      -- completed children, to be counted at their parents
    v_gone uuid[];          -- those of them that are not kept
begin
    if v_sweeps or true = any (p_marks) then
        select array_agg(x.id), array_agg(k.ctid), array_agg(k.next) into v_key_ids, v_key_rows, v_nexts
        from unnest(p_ids, p_leases) as i(id, lease)
        cross join lateral (select s.id, s.queue, s.key from job_state s where s.id = i.id and s.key is not null offset 0) x
        cross join lateral (
            select q.ctid, q.next from job_key q where q.queue = x.queue and q.key = x.key and q.holder = x.id
            for update skip locked offset 0) k
        where v_sweeps or p_marks[coalesce(i.lease, 1)];
        if not v_sweeps and coalesce(cardinality(v_key_ids), 0) < (
            select count(*) from unnest(p_ids, p_leases) as i(id, lease) where p_marks[coalesce(i.lease, 1)])
        then  -- somebody has a key, or a lease is old
            v_ids := array(
                select case when p_marks[coalesce(i.lease, 1)] and i.id <> all (coalesce(v_key_ids, '{}')) then null else i.id end
                from unnest(p_ids, p_leases) with ordinality as i(id, lease, ord) order by i.ord);
        end if;
    end if;
    o_at := coalesce(p_now, clock_timestamp());
    v_until := case when p_now is null and not v_sweeps then o_at else 'infinity' end;
    v_has_settings := exists (
        select from queue_settings r where r.max_running is not null or r.fail_queue is not null or r.has_retention);

    if p_others is not null then
        v_others := array(select o.ord from json_to_recordset(p_others) as o(ord integer));
    end if;
    if not v_sweeps and cardinality(v_others) < v_count then
        -- The usual way, for acks of jobs that ran for the first time. To look all of them up together costs a third of as many
        -- look-ups, and there is little else to see to. The ids are sorted, so width_bucket is the place of one of them.
        with u as (
            update job_state s set state = 4, version = 3, updated_at = o_at, ends_at = o_at,
                result = case when p_results is not null then p_results[width_bucket(s.id, p_ids)] end
            where s.id = any (v_ids) and s.state = 3 and s.version = 2 and s.starts = 1 and not s.cancel_requested
              and s.ends_at > o_at and s.updated_at <= v_until and s.link_flags & 46 = 0
              -- A step of its family may have a child, and wait for another one that is done here.
              and (s.link_flags & 64 = 0 or (select true from job_state k where k.id = s.id for no key update skip locked))
              and case when p_leases is null then
                      s.token = v_token and s.worker = coalesce(v_worker, s.worker) and (s.key is not null) = v_mark
                  else s.token = p_tokens[p_leases[width_bucket(s.id, p_ids)]]
                      and s.worker = coalesce(p_workers[p_leases[width_bucket(s.id, p_ids)]], s.worker)
                      and (s.key is not null) = p_marks[p_leases[width_bucket(s.id, p_ids)]] end
              and (p_others is null or width_bucket(s.id, p_ids) <> all (v_others))
            returning s.id, s.queue, s.link_flags & 64 <> 0 as is_child
        ), acked as (
            select u.queue, u.is_child, array_agg(u.id) as ids from u where not v_has_settings group by 1, 2
        ), filed as (
            insert into finished (at, queue, state, ids)
            select o_at, a.queue, 4, a.ids[i : i + 99]
            from acked a cross join lateral generate_series(1, cardinality(a.ids), 100) as i where not a.is_child
        ), filed_children as (
            insert into child_end (at, queue, ids)
            select o_at, a.queue, a.ids[i : i + 99]
            from acked a cross join lateral generate_series(1, cardinality(a.ids), 100) as i where a.is_child
        ), tallied as (
            insert into tally_change (queue, state, change) select a.queue, 4, cardinality(a.ids) from acked a
        )
        select array_agg(u.id), array_agg(u.id) filter (where u.is_child) into v_acked, v_children from u;
        if v_has_settings then
            for v_part in
                select s.queue, s.link_flags & 64 <> 0 as is_child, array_agg(s.id) as ids from job_state s
                where s.id = any (v_acked) group by 1, 2
            loop
                delete from slot where queue = v_part.queue and id = any (v_part.ids);
                if retention(v_part.queue, 4) = 0 then
                    if v_part.is_child then
                        v_gone := v_gone || v_part.ids;
                    else
                        perform forget(v_part.ids);
                    end if;
                elsif v_part.is_child then
                    insert into child_end (at, queue, ids)
                    select o_at, v_part.queue, v_part.ids[i : i + 99] from generate_series(1, cardinality(v_part.ids), 100) as i;
                    insert into tally_change (queue, state, change) values (v_part.queue, 4, cardinality(v_part.ids));
                else
                    insert into finished (at, queue, state, ids)
                    select o_at, v_part.queue, 4, v_part.ids[i : i + 99] from generate_series(1, cardinality(v_part.ids), 100) as i;
                    insert into tally_change (queue, state, change) values (v_part.queue, 4, cardinality(v_part.ids));
                end if;
            end loop;
        end if;
        if cardinality(v_acked) = v_count then
            if v_key_ids is not null then
                perform leave_keys(o_at, v_key_rows, v_nexts);
            end if;
            if p_leases is null then  -- as `drop_hints`
                delete from lease where token = v_token and claimed = v_count;
            else
                perform drop_hints(p_leases, p_tokens, array(select generate_series(1, v_count)));
            end if;
            if v_children is not null then
                o_counted := count_children(v_children, v_gone);
            end if;
            o_versions := array[3];
            return;
        end if;
    end if;
    if v_sweeps then
        v_left := array(select generate_series(1, v_count));
    elsif coalesce(cardinality(v_acked), 0) + cardinality(v_others) < v_count then
        v_left := array(
            select i.ord from unnest(p_ids) with ordinality as i(id, ord)
            where i.ord <> all (v_others) and (v_acked is null or i.id <> all (v_acked)));
    end if;
    if v_acked is not null then
        v_places := array(select generate_series(1, v_count) except select unnest(v_others || v_left));
        if v_key_ids is not null then
            select array_agg(k.row) as rows, array_agg(k.next) as nexts into v_part
            from unnest(v_key_ids, v_key_rows, v_nexts) as k(id, row, next) where k.id = any (v_acked);
            if v_part.rows is not null then
                perform leave_keys(o_at, v_part.rows, v_part.nexts);
            end if;
        end if;
    end if;
    -- Rows are locked by rising id everywhere, and what is left may come before what was done: it is not waited for.
    select r.o_done, r.o_states, r.o_versions, r.o_merged, v_children || r.o_children, v_gone || r.o_gone
    into o_done, o_states, o_versions, o_merged, v_children, v_gone
    from settle_others(o_at, v_until, v_ids, v_left, p_leases, p_tokens, p_workers, p_marks, p_results, p_others, v_has_settings,
                       v_key_ids, v_key_rows, v_nexts) r;
    if v_acked is not null then
        o_done := o_done || v_places;
        o_states := o_states || array_fill(4::smallint, array[cardinality(v_places)]);
        o_versions := o_versions || array_fill(3, array[cardinality(v_places)]);
    end if;
    if not v_sweeps and cardinality(o_done) > 0 then
        perform drop_hints(p_leases, p_tokens, o_done);
    end if;
    if v_children is not null then  -- after the hints: who waits for the table of leases holds no stripe
        o_counted := count_children(v_children, v_gone);
    end if;
end $$;
