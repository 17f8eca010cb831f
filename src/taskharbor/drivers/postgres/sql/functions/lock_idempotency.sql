-- lock_idempotency: lock the idempotency keys that lead to these jobs, in the order in which everybody locks them.
create or replace function {schema}.lock_idempotency(p_ids uuid[]) returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    perform from idempotency k where k.job_id = any (p_ids) order by k.queue collate "C", k.key for update;
end $$;
