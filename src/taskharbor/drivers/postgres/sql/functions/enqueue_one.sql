-- enqueue_one: store one job without keys that may run at once, which is the usual enqueue. Returns when it was
-- stored; null when it was not, because a rate, an alias or a job of this id has to be looked at: `enqueue` does that. 23505: an id
-- that became known meanwhile.
--   The statement that looks also reads the clock: what it no longer sees was deleted before. One that is being deleted is not waited for
-- here, for the time would be that from before the wait.
-- The record is that of `new_record` in model/transitions.py.
create or replace function {schema}.enqueue_one(
    p_now timestamptz, p_id uuid, p_queue text, p_type text, p_payload bytea, p_headers text, p_rank smallint,
    p_lane text, p_timeout bigint, p_max_attempts integer, p_max_stalls integer, p_min_backoff bigint,
    p_max_backoff bigint)
returns timestamptz
language plpgsql security definer set search_path = {schema}, pg_temp {plan} as $$
declare
    v_now timestamptz;
begin
    with body as (
        insert into job (id, seq, queue, type, payload, created_at, headers, timeout_us, max_attempts, max_stalls,
                         min_backoff_us, max_backoff_us)
        select p_id, nextval('job_seq'), p_queue, p_type, p_payload, coalesce(p_now, clock_timestamp()), p_headers::json,
               p_timeout, p_max_attempts, p_max_stalls, p_min_backoff, p_max_backoff
        where not exists (select from queue_settings r where r.enqueue_count is not null and r.queue in (p_queue, '*'))
          and not exists (select from alias a where a.id = p_id)
          and not exists (select from job j where j.id = p_id)
        returning seq, created_at
    ), state as (
        insert into job_state (id, seq, eligible_at, updated_at, rank, state, queue, lane)
        select p_id, b.seq, b.created_at, b.created_at, p_rank, 0, p_queue, p_lane from body b
    ), line as (
        insert into waiting (seq, eligible_at, id, rank, queue, lane, line)
        select b.seq, b.created_at, p_id, p_rank, p_queue, p_lane, p_queue || '/' || p_lane || '/' || p_type from body b
    ), tallied as (
        insert into tally_change (queue, lane, rank, change) select p_queue, p_lane, p_rank, 1 from body
    ), woken as (  -- as `wake` does; in here it costs no statements of its own
        delete from idle_queue where ctid = any (array(
            select h.ctid from idle_queue h where h.queue = p_queue and exists (select from body) for update skip locked))
        returning pg_notify('taskharbor:' || current_schema(), 'work ' || queue)
    )
    select b.created_at into v_now from body b left join woken on true;
    if random() < 0.001 then
        perform fold_tallies();
    end if;
    return v_now;
end $$;
