-- write_state: what a job that the caller has locked is after a step, in every table that has to do with it but job_key.
create or replace function {schema}.write_state(
    p_id uuid, p_now timestamptz, p_state smallint, p_link_flags smallint, p_version integer, p_lane text, p_rank smallint,
    p_run_at timestamptz, p_updated_at timestamptz, p_attempts integer, p_stalls integer, p_starts integer, p_fence bigint,
    p_cancel_requested boolean, p_token uuid, p_worker text, p_ends_at timestamptz, p_started_at timestamptz,
    p_update_flags text, p_last_error text, p_failed_at timestamptz, p_failure_kind text, p_result bytea, p_progress json,
    p_history json)
returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_before job_state;
begin
    select * into v_before from job_state s where s.id = p_id;
    if v_before.state = 0 then
        with gone as (
            delete from waiting where queue = v_before.queue and lane = v_before.lane and rank = v_before.rank
            and eligible_at = v_before.eligible_at and seq = v_before.seq returning *
        )
        insert into tally_change (queue, lane, rank, slice, change)
        select g.queue, g.lane, g.rank, case when g.is_timed then slice_of(g.eligible_at) else '-infinity' end, -1
        from gone g where not g.is_copy;
    elsif v_before.state >= 4 then
        perform leave_finished(v_before);
    elsif v_before.state = 3 and p_state <> 3 then
        delete from slot where queue = v_before.queue and id = p_id;
    end if;
    update job_state set
        state = p_state, link_flags = p_link_flags, version = p_version, lane = p_lane, rank = p_rank,
        eligible_at = coalesce(p_run_at, (select j.created_at from job j where j.id = p_id)), is_timed = p_run_at is not null,
        updated_at = p_updated_at, attempts = p_attempts, stalls = p_stalls, starts = p_starts, fence = p_fence,
        cancel_requested = p_cancel_requested, token = p_token, worker = p_worker, ends_at = p_ends_at,
        started_at = p_started_at, update_flags = p_update_flags, result = p_result, progress = p_progress
    where id = p_id;
    if p_last_error is null and p_failed_at is null and p_failure_kind is null and p_history is null then
        delete from job_history where id = p_id;
    else
        insert into job_history values (p_id, p_last_error, p_failed_at, p_failure_kind, p_history)
        on conflict (id) do update set
            last_error = excluded.last_error, failed_at = excluded.failed_at, failure_kind = excluded.failure_kind,
            history = excluded.history;
    end if;
    if p_state = 0 then
        perform line_up(array[p_id], p_now);
    elsif p_state >= 4 and p_link_flags & 96 <> 0 then
        insert into family_end (id, seq, at, state, is_root, queue)
        select s.id, s.seq, s.ends_at, s.state, j.parent is null, s.queue from job_state s join job j on j.id = s.id where s.id = p_id;
    elsif p_state >= 4 then
        insert into finished (at, queue, state, is_copy, seq, ids)
        select s.ends_at, s.queue, s.state, s.link_flags & 4 <> 0,
               case when s.state > 4 and s.link_flags & 4 = 0 then s.seq end, array[s.id]
        from job_state s where s.id = p_id;
    end if;
    if p_state >= 4 and p_link_flags & 4 = 0 then
        insert into tally_change (queue, state, change) values (v_before.queue, p_state, 1);
    end if;
end $$;
