create or replace function {schema}.spend_execution(
    p_queue text, p_worker text, p_rate_count integer, p_rate_us bigint, p_count integer, p_now timestamptz)
returns void language plpgsql set search_path = {schema}, pg_temp as $$
begin
    perform budget_spend('execute', r.queue, r.execute_us, p_count, p_now)
    from queue_settings r where r.queue in (p_queue, '*') and r.execute_count is not null;
    if p_rate_count is not null then
        perform budget_spend('worker', p_worker, p_rate_us, p_count, p_now);
    end if;
end $$;
