-- has_idempotency: lock the idempotency keys of a job, and of what is blocked behind its key, without waiting; false: somebody has one.
create or replace function {schema}.has_idempotency(p_id uuid, p_queue text, p_key bytea) returns boolean
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_ids uuid[] := array[p_id, (select q.next from job_key q where q.queue = p_queue and q.key = p_key)];
begin
    return (select count(*) from (select from idempotency k where k.job_id = any (v_ids) for update skip locked) f)
           = (select count(*) from idempotency k where k.job_id = any (v_ids));
end $$;
