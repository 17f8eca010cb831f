-- insert_job: a job that the store makes by itself, a failure job or a copy. Ready at once. A failure that is repeated
-- finds its job already there. p_seq null: the next one.
create or replace function {schema}.insert_job(
    p_id uuid, p_seq bigint, p_queue text, p_type text, p_payload bytea, p_created_at timestamptz, p_headers json,
    p_timeout bigint, p_max_attempts integer, p_max_stalls integer, p_min_backoff bigint, p_max_backoff bigint,
    p_lane text, p_rank smallint, p_run_at timestamptz, p_fence bigint, p_speculates_on uuid, p_avoid_worker text,
    p_avoid_until timestamptz, p_avoid_others text[])
returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_seq bigint := coalesce(p_seq, nextval('job_seq'));
begin
    insert into job (id, seq, queue, type, payload, created_at, headers, timeout_us, max_attempts, max_stalls,
                     min_backoff_us, max_backoff_us, speculates_on, avoid_worker, avoid_until, avoid_others)
    values (p_id, v_seq, p_queue, p_type, p_payload, p_created_at, p_headers, p_timeout, p_max_attempts, p_max_stalls,
            p_min_backoff, p_max_backoff, p_speculates_on, p_avoid_worker, p_avoid_until, p_avoid_others)
    on conflict (id) do nothing;
    if found then
        insert into job_state (id, seq, eligible_at, updated_at, fence, rank, state, link_flags, is_timed, queue, lane)
        values (p_id, v_seq, coalesce(p_run_at, p_created_at), p_created_at, p_fence, p_rank, 0,
                case when p_speculates_on is null then 0 else 4 end, p_run_at is not null, p_queue, p_lane);
        perform line_up(array[p_id], p_created_at);
        insert into handed_back (queue) values (p_queue);  -- a copy comes before what its original came before
    end if;
end $$;
