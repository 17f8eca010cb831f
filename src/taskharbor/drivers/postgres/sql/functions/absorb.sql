-- absorb: apply an enqueue to the waiting or blocked job of its key, which the caller has locked; the new version.
-- The same as `absorb` in model/transitions.py.
create or replace function {schema}.absorb(
    p_id uuid, p_flags text, p_now timestamptz, p_run_at timestamptz, p_type text, p_payload bytea,
    p_headers text, p_timeout bigint, p_priority smallint, p_lane text, p_max_attempts integer,
    p_max_stalls integer, p_min_backoff bigint, p_max_backoff bigint)
returns integer
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_data boolean := substr(p_flags, 1, 1) = '1';
    v_retry boolean := substr(p_flags, 3, 1) = '1';
    v_reset boolean := resets_counts(p_flags) = '1';
    v_there job_state;
    v_run_at timestamptz;
begin
    select * into v_there from job_state s where s.id = p_id;
    v_run_at := chosen_run_at(substr(p_flags, 2, 1), case when v_there.is_timed then v_there.eligible_at end, p_run_at, p_now);
    update job j set
        type = case when v_data then p_type else j.type end,
        payload = case when v_data then p_payload else j.payload end,
        headers = case when v_data then p_headers::json else j.headers end,
        timeout_us = case when v_data then p_timeout else j.timeout_us end,
        max_attempts = case when v_retry then p_max_attempts else j.max_attempts end,
        max_stalls = case when v_retry then p_max_stalls else j.max_stalls end,
        min_backoff_us = case when v_retry then p_min_backoff else j.min_backoff_us end,
        max_backoff_us = case when v_retry then p_max_backoff else j.max_backoff_us end
    where j.id = p_id and (v_data or v_retry);
    if v_there.state = 0 then
        with gone as (
            delete from waiting where queue = v_there.queue and lane = v_there.lane and rank = v_there.rank
            and eligible_at = v_there.eligible_at and seq = v_there.seq returning *
        )
        insert into tally_change (queue, lane, rank, slice, change)
        select g.queue, g.lane, g.rank, case when g.is_timed then slice_of(g.eligible_at) else '-infinity' end, -1
        from gone g where not g.is_copy;
    end if;
    update job_state s set
        version = s.version + 1,
        updated_at = p_now,
        eligible_at = coalesce(v_run_at, (select j.created_at from job j where j.id = p_id)),
        is_timed = v_run_at is not null,
        rank = case when v_data then -p_priority else s.rank end,
        lane = case when v_data then p_lane else s.lane end,
        attempts = case when v_reset then 0 else s.attempts end,
        stalls = case when v_reset then 0 else s.stalls end,
        -- `joined_flags`: booleans or-ed, run_at the last.
        update_flags = case when s.state = 2 then
            greatest(substr(s.update_flags, 1, 1), substr(p_flags, 1, 1)) || substr(p_flags, 2, 1)
            || greatest(substr(s.update_flags, 3, 1), substr(p_flags, 3, 1))
            || greatest(resets_counts(s.update_flags), resets_counts(p_flags)) end
    where s.id = p_id;
    perform line_up(array[p_id], p_now);
    return v_there.version + 1;
end $$;
