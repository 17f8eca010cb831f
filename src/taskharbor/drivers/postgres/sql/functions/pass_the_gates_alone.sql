-- pass_the_gates_alone: claims under a limit go one after the other; unlimited ones never come here. A session that has
-- locked rows must not wait at a gate: so no heartbeat waits for one that does, and there is no deadlock. p_waits false:
-- returns false if another session is at the gate.
create or replace function {schema}.pass_the_gates_alone(p_queues text[], p_worker text, p_waits boolean) returns boolean
language plpgsql set search_path = {schema}, pg_temp as $$
declare
    v_gate bigint;
begin
    for v_gate in
        select lock_id('claim', r.queue) from queue_settings r
        where (r.queue = any (p_queues) or r.queue = '*') and (r.max_running is not null or r.execute_count is not null)
        union
        select lock_id('worker', p_worker) where p_worker is not null
        order by 1
    loop
        if p_waits then
            perform pg_advisory_xact_lock(v_gate);
        elsif not pg_try_advisory_xact_lock(v_gate) then
            return false;
        end if;
    end loop;
    return true;
end $$;
