-- exchange: settle, then hand out jobs, in one statement. The rule of a claim is `claimed` in model/transitions.py.
--   p_ids … p_others: what to settle, as in `settle_attempts`; p_ids null: nothing.
--   p_queues … p_rate_us: the claim; p_limit 0: none. p_idle: queues to mark as idle when not enough was found.
--   p_checked_until: hints that were due before that were looked at a moment ago. p_seen: the latest instant that the
--   caller has seen; a clock behind it went back. p_start_…: for some lines, named queue/lane, by rising rank, the place
--   of the last job that the same caller took a moment ago. Entries before it are mostly dead ones that no vacuum has
--   removed yet. p_back: the newest row of `handed_back` then; when there is one since, the start of the line is looked at.
--   Returns a first row: the deciding instant in o_created_at; in o_seq 1 when leases must be reclaimed by the caller
--   first, 2 when settlements are left over (18: some of them of jobs of families) and 4 when others are at a gate: then nothing was
--   claimed; 8 when not enough was found and something is owed to families. In o_rank 1 when not enough was found and children are
--   counted by sets at some parent; in o_max_attempts how many of the jobs are not handed out the usual way. In o_done, o_states and
--   o_versions the answers of `settle_attempts`, `settle_members` and `settle_link`, o_settled_at their instant; in o_type the parents at
--   which children were counted, as in `settle_members`; in o_id the newest row of `handed_back`, as text; in o_more what a sweep brought about, as
--   [id, queue, type, result, stalls, at, version, ord]. Then the jobs that were handed out: for each queue, lane and rank those of the
--   usual way, by id, and behind all of these the others. The caller sorts them. o_more has what only some of them have. A last row
--   without o_id names entries that had lost their jobs.
--
-- A claim that waits for a gate holds no other lock, and waits for nothing more once it is through.
create or replace function {schema}.exchange(
    p_now timestamptz, p_ids uuid[], p_leases smallint[], p_tokens uuid[], p_workers text[], p_marks boolean[],
    p_results bytea[], p_others json,
    p_queues text[], p_lanes text[], p_worker text, p_limit integer, p_lease_us bigint, p_token uuid,
    p_types text[], p_rate_count integer, p_rate_us bigint, p_idle text[],
    p_checked_until timestamptz default null, p_seen timestamptz default null, p_start_lines text[] default null,
    p_start_ranks smallint[] default null, p_start_ats timestamptz[] default null, p_start_seqs bigint[] default null,
    p_back bigint default null)
returns table (
    o_id text, o_seq bigint, o_type text, o_queue text, o_payload bytea, o_created_at timestamptz, o_rank smallint,
    o_lane text, o_run_at timestamptz, o_max_attempts integer, o_max_stalls integer, o_more json, o_key bytea,
    o_done integer[], o_states smallint[], o_versions integer[], o_settled_at timestamptz)
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_until timestamptz;
    v_ends timestamptz;
    v_fence bigint;
    v_is_gated boolean;
    v_careful boolean;
    v_rooms integer[];
    v_harbor integer;
    v_queues text[] := p_queues;
    v_leased text[] := p_queues;
    v_lines text[] := p_start_lines;
    v_back bigint;
    v_is_back boolean;           -- was something handed back to these queues since the last claim?
    v_queue text;
    v_lane text;
    v_line text;
    v_room integer;
    v_left integer := p_limit;
    v_at_start integer;
    v_known smallint;
    v_previous smallint;
    v_rank smallint;
    v_at timestamptz;
    v_seq bigint;
    v_some_rows tid[];
    v_some_ids uuid[];
    v_rows tid[] := '{}';        -- of all rounds: rows of `waiting`
    v_ids uuid[] := '{}';        -- and their jobs, in order
    v_from text[] := '{}';       -- per round: its queue,
    v_counts integer[] := '{}';  -- how many jobs it took,
    v_firsts integer[] := '{}';  -- where they begin in v_ids,
    v_ranks smallint[] := '{}';  -- and their rank
    v_lanes text[] := '{}';      -- and lane
    v_taken integer;
    v_some integer;
    v_usual integer;
    v_has_keys boolean;
    v_is_limited boolean;
    v_odd uuid[] := '{}';        -- jobs with a past, a time or other links than a key
    v_stops boolean;             -- is there a parent whose children must not be handed out?
    v_lost uuid[] := '{}';       -- jobs whose rows have vanished
    v_are_members boolean;       -- is all that is settled of families, and more than children?
    v_flags smallint;
    v_member record;
    v_link record;
begin
    if p_ids is not null then
        -- Jobs of families with more bonds than a parent, alone as in a chain: `settle_attempts` does nothing with them.
        v_are_members := p_others is null and not exists (
            select from unnest(p_ids) as i(id)
            left join lateral (select k.link_flags from job_state k where k.id = i.id offset 0) s on true
            where coalesce(s.link_flags, 0) & 32 = 0);
        if v_are_members then
            o_done := '{}';
            if cardinality(p_ids) = 1 and not p_marks[1] then
                select * into v_link from settle_link(p_now, p_ids[1], p_tokens[1], p_workers[1], p_results[1]);
                if v_link.o_version is not null then
                    o_settled_at := v_link.o_at;
                    o_done := '{1}';
                    o_states := '{4}';
                    o_versions := array[v_link.o_version];
                end if;
            end if;
        else
            select s.o_at, s.o_done, s.o_states, s.o_versions, s.o_counted into o_settled_at, o_done, o_states, o_versions, o_type
            from settle_attempts(p_now, p_ids, p_leases, p_tokens, p_workers, p_marks, p_results, p_others) s;
        end if;
        if cardinality(o_done) < cardinality(p_ids) then
            v_flags := (
                select bit_or(s.link_flags) from unnest(p_ids) with ordinality as i(id, ord)
                cross join lateral (select k.link_flags from job_state k where k.id = i.id offset 0) s where i.ord <> all (o_done));
            if v_flags & 32 <> 0 then
                select * into v_member from settle_members(
                    p_now, o_settled_at, p_ids, p_leases, p_tokens, p_workers, p_marks, p_results, p_others, o_done);
                o_settled_at := v_member.o_at;
                o_done := o_done || v_member.o_done;
                o_states := o_states || array_fill(4::smallint, array[cardinality(v_member.o_done)]);
                o_versions := o_versions || v_member.o_versions;
                o_type := nullif(concat_ws(' ', o_type, v_member.o_counted), '');
            end if;
            o_seq := case when cardinality(o_done) = cardinality(p_ids) then 0 when v_flags & 96 <> 0 then 18 else 2 end;
        end if;
        v_now := coalesce(p_now, clock_timestamp());
    end if;
    o_created_at := v_now;
    o_seq := coalesce(o_seq, 0);
    if p_limit <= 0 or o_seq > 0 then
        return next;
        return;
    end if;

    if cardinality(p_queues) > 4 then  -- what it costs must not depend on queues where nothing is
        v_queues := queues_with('jobs', p_queues);
        v_leased := queues_with('leases', p_queues);
    end if;
    v_is_gated := p_rate_count is not null or exists (
        select from queue_settings r where (r.queue = any (p_queues) or r.queue = '*')
        and (r.paused or r.max_running is not null or r.execute_count is not null));
    if v_is_gated and not pass_the_gates_alone(p_queues, case when p_rate_count is not null then p_worker end, p_ids is null) then
        o_seq := 4;
        return next;
        return;
    end if;
    if v_is_gated then
        v_now := coalesce(p_now, clock_timestamp());
    end if;

    if exists (select from lease h where h.queue = any (v_leased) and h.expires_at <= v_now
               and h.expires_at > coalesce(p_checked_until, '-infinity'))
    then
        select json_agg(json_build_array(s.o_id, s.o_queue, s.o_type, s.o_result, s.o_stalls, micros(s.o_at), s.o_version, s.o_ord))
                   filter (where s.o_result in (5, 8, 9)),
               bool_or(s.o_result = 8)
        into o_more, v_careful from sweep(v_now, v_leased, 100) s;
        if v_careful then
            o_seq := 1;
            return next;
            return;
        end if;
        v_now := coalesce(p_now, clock_timestamp());
        if cardinality(p_queues) > 4 then
            v_queues := queues_with('jobs', p_queues);
        end if;
    end if;

    if v_is_gated then
        v_rooms := array(select room_for(q.name, v_now, p_limit) from unnest(v_queues) with ordinality as q(name, ord) order by q.ord);
        v_harbor := room_for('*', v_now, p_limit);
        if p_rate_count is not null then
            v_harbor := least(v_harbor, budget_room('worker', p_worker, p_rate_count, p_rate_us, v_now));
        end if;
    end if;
    select case when p_now is null then (select max(b.no) from handed_back b) end,
           p_now is null and v_lines is not null and exists (
               select from handed_back b where b.no > coalesce(p_back, 0) and b.queue = any (p_queues)),
           p_types is null and exists (select from family f where f.is_stopping and f.is_open)
    into v_back, v_is_back, v_stops;
    o_id := v_back::text;
    if v_is_back then
        v_lines := null;
    end if;
    foreach v_queue in array v_queues loop
        exit when v_left <= 0;
        v_room := v_left;
        if v_is_gated then
            v_room := least(v_left, v_rooms[array_position(v_queues, v_queue)], v_harbor);
            continue when v_room <= 0;
        end if;
        -- Scheduled jobs wait behind v_now in the same index. A job without a run_at is ready whatever its created_at;
        -- one that lies behind v_now was made by a clock that has gone back since.
        v_until := 'infinity';
        if p_now is null then
            v_until := greatest(v_now, p_seen);
            if v_lines is null then
                v_until := greatest(v_until, (
                    select j.created_at from job j where j.queue = v_queue order by j.seq desc limit 1));
            end if;
        end if;
        foreach v_lane in array p_lanes loop
            v_line := v_queue || '/' || v_lane;
            v_at_start := array_position(v_lines, v_line);
            v_previous := -32768;
            loop
                exit when v_room <= 0;
                -- The next rank that has entries; a known one begins behind the job that was taken last.
                v_known := case when v_lines[v_at_start] = v_line then p_start_ranks[v_at_start] end;
                select w.rank into v_rank from waiting w
                where w.queue = v_queue and w.lane = v_lane and w.rank > v_previous and w.rank < coalesce(v_known, 32767::smallint)
                order by w.rank limit 1;
                if found then
                    v_at := '-infinity';
                    v_seq := 0;
                else
                    exit when v_known is null;
                    v_rank := v_known;
                    v_at := p_start_ats[v_at_start];
                    v_seq := p_start_seqs[v_at_start];
                    v_at_start := v_at_start + 1;
                end if;
                v_previous := v_rank;
                if p_types is null then
                    select array_agg(w.row), array_agg(w.id) into v_some_rows, v_some_ids from (
                        select w.ctid as row, w.id from waiting w
                        where w.queue = v_queue and w.lane = v_lane and w.rank = v_rank and w.eligible_at <= v_until
                          and (w.eligible_at, w.seq) > (v_at, v_seq)
                          and (not w.is_timed or w.eligible_at <= v_now)
                          and (not w.is_copy or may_copy(w.id, p_worker, v_now))
                          and (not v_stops or not is_stopped_child(w.id))
                          and (not w.has_run or (select true from job_state s where s.id = w.id
                               and (s.link_flags & 32 = 0 or may_run(s.id, v_now)) for update skip locked))
                        order by w.eligible_at, w.seq limit v_room for update skip locked) w;
                else
                    select s.rows, s.ids into v_some_rows, v_some_ids
                    from some_types(v_queue, v_lane, p_types, v_rank, v_at, v_seq, v_until, v_room, p_worker, v_now) s;
                end if;
                continue when v_some_rows is null;
                v_taken := cardinality(v_some_rows);
                v_from := v_from || v_queue;
                v_counts := v_counts || v_taken;
                v_firsts := v_firsts || cardinality(v_ids) + 1;
                v_ranks := v_ranks || v_rank;
                v_lanes := v_lanes || v_lane;
                v_rows := v_rows || v_some_rows;
                v_ids := v_ids || v_some_ids;
                v_left := v_left - v_taken;
                v_room := v_room - v_taken;
                v_harbor := v_harbor - v_taken;
            end loop;
        end loop;
    end loop;

    -- Locked first, stamped then: whatever made room, and whatever moved these jobs before, lies before their leases.
    v_now := coalesce(p_now, clock_timestamp());
    v_ends := after(v_now, p_lease_us);
    v_fence := micros(v_now);
    o_created_at := v_now;
    if v_left > 0 then
        select case when exists (select from owed) or exists (select from family f where f.deadline <= v_now) then 8 else 0 end,
               case when exists (select from stripe) then 1 end
        into o_seq, o_rank;
    end if;
    if cardinality(v_rows) = 0 then
        return next;
    else
        insert into lease (expires_at, queue, token, claimed, ids)
        select v_ends, r.queue, p_token, cardinality(v_ids), v_ids[i : least(i + 99, r.first + r.count - 1)]
        from unnest(v_from, v_counts, v_firsts) as r(queue, count, first)
        cross join generate_series(r.first, r.first + r.count - 1, 100) as i;
        -- What follows waits for no lock: the session with the row in `waiting` has the job, and one that ran before was locked with it.
        -- The usual way is for first runs that concern no other job. To look all of them up together costs a third of as many look-ups.
        with u as (
            update job_state s set
                state = 3, version = 2, updated_at = v_now, started_at = v_now, ends_at = v_ends,
                fence = greatest(s.fence + 1, v_fence), starts = 1, token = p_token, worker = p_worker
            where s.id = any (v_ids) and s.version = 1 and s.link_flags & 62 = 0 and not s.is_timed
            returning s.key is not null as is_keyed
        )
        -- A limit that was set since this began counts these, too: the call that sets it waits for writers of `lease`.
        select count(*), bool_or(u.is_keyed), exists (
            select from queue_settings r where r.max_running is not null and (r.queue = '*' or r.queue = any (v_from)))
        into v_usual, v_has_keys, v_is_limited from u;
        if v_usual = cardinality(v_ids) then  -- none of them has a time or is a copy
            with gone as (
                delete from waiting where ctid = any (v_rows)
            )
            insert into tally_change (queue, lane, rank, change)
            select r.queue, r.lane, r.rank, -r.count from unnest(v_from, v_lanes, v_ranks, v_counts) as r(queue, lane, rank, count);
        else
            with gone as (
                delete from waiting w where w.ctid = any (v_rows) returning w.*
            ), tallied as (
                insert into tally_change (queue, lane, rank, slice, change)
                select g.queue, g.lane, g.rank, case when g.is_timed then slice_of(g.eligible_at) else '-infinity' end, -count(*)
                from gone g where not g.is_copy group by 1, 2, 3, 4
            )
            select array(select s.id from job_state s where s.id = any (v_ids) and s.state = 0) into v_odd;
        end if;
        o_max_attempts := cardinality(v_odd);
        return next;
        v_taken := 0;
        if v_usual > 0 then
            return query
            select j.id::text, j.seq, j.type, j.queue, j.payload, j.created_at, r.rank, r.lane, null::timestamptz,
                j.max_attempts, j.max_stalls,
                case when j.timeout_us <> 0 or j.min_backoff_us is not null or j.max_backoff_us is not null or j.headers is not null then
                    ('[' || concat_ws(',', j.timeout_us, coalesce(j.min_backoff_us::text, 'null'), coalesce(j.max_backoff_us::text, 'null'),
                                      coalesce(j.headers::text, 'null'), '"' || j.parent || '"', '"' || coalesce(j.root, j.parent) || '"')
                     || ']')::json
                     when j.parent is not null then ('"' || j.parent::text || coalesce(j.root::text, '') || '"')::json end,
                case when v_has_keys then (select k.key from job_state k where k.id = j.id) end,
                null::integer[], null::smallint[], null::integer[], null::timestamptz
            from unnest(v_ranks, v_lanes, v_counts, v_firsts) as r(rank, lane, count, first)
            cross join lateral (
                select k.* from job k
                where k.id = any (case when cardinality(v_odd) = 0 then v_ids[r.first : r.first + r.count - 1] else array(
                    select unnest(v_ids[r.first : r.first + r.count - 1]) except select unnest(v_odd)) end) offset 0) j;
            get diagnostics v_taken = row_count;
        end if;
        if cardinality(v_odd) > 0 then
            return query
            update job_state s set
                state = 3, version = s.version + 1, updated_at = v_now, started_at = v_now, ends_at = v_ends,
                fence = greatest(s.fence + 1, v_fence), starts = s.starts + 1, token = p_token, worker = p_worker, progress = null
            from unnest(v_odd) as t(id), job j
            where j.id >= t.id and j.id <= t.id and s.id >= t.id and s.id <= t.id
            returning s.id::text, s.seq, j.type, s.queue, j.payload, j.created_at, s.rank, s.lane,
                case when s.is_timed then s.eligible_at end, j.max_attempts, j.max_stalls,
                case when s.version > 2 or s.link_flags & 38 <> 0 or j.headers is not null or j.timeout_us <> 0
                          or j.min_backoff_us is not null or j.max_backoff_us is not null then
                    json_build_array(
                        j.headers, j.timeout_us, j.min_backoff_us, j.max_backoff_us, s.version, encode(j.idempotency_key, 'hex'),
                        s.attempts, s.stalls, s.starts, s.fence, s.cancel_requested, j.speculates_on, j.avoid_worker,
                        micros(j.avoid_until), j.avoid_others, (
                            select json_build_array(h.last_error, micros(h.failed_at), h.failure_kind, h.history)
                            from job_history h where h.id = s.id),
                        case when s.link_flags & 32 <> 0 then family_more(s.id)
                             when s.link_flags & 64 <> 0 then json_build_array(coalesce(j.root, j.parent), j.parent) end)
                     when s.link_flags & 64 <> 0 then ('"' || j.parent::text || coalesce(j.root::text, '') || '"')::json end,
                s.key, null::integer[], null::smallint[], null::integer[], null::timestamptz;
            get diagnostics v_some = row_count;
            v_taken := v_taken + v_some;
        end if;
        if v_taken < cardinality(v_ids) then  -- entries without a job: they go
            v_lost := array(
                select t.id from unnest(v_ids) as t(id) where not exists (select from job j where j.id = t.id offset 0));
            perform forget_lost(v_lost);
            return query select null, null::bigint, null, null, null::bytea, null::timestamptz, null::smallint, null,
                null::timestamptz, null::integer, null::integer, array_to_json(v_lost), null::bytea, null::integer[],
                null::smallint[], null::integer[], null::timestamptz;
        end if;
        if v_is_limited then
            insert into slot (queue, id, expires_at)
            select r.queue, v_ids[i], v_ends from unnest(v_from, v_counts, v_firsts) as r(queue, count, first)
            cross join generate_series(r.first, r.first + r.count - 1) as i
            where v_ids[i] <> all (v_lost) and exists (
                select from queue_settings q where q.max_running is not null and q.queue in (r.queue, '*'))
            on conflict (queue, id) do update set expires_at = excluded.expires_at;
        end if;
        if v_is_gated then
            perform spend_execution(r.queue, p_worker, p_rate_count, p_rate_us, r.count::integer, v_now)
            from (select f.queue, sum(f.count) as count from unnest(v_from, v_counts) as f(queue, count) group by 1) r;
        end if;
    end if;
    if p_idle is not null and v_left > 0 then
        insert into idle_queue
        select q from unnest(p_idle) q where not exists (select from idle_queue h where h.queue = q) order by q
        on conflict do nothing;
    end if;
    if random() < 0.002 then
        perform fold_tallies();
    end if;
end $$;
