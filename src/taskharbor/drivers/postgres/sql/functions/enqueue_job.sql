-- enqueue_job: one job, for psql, triggers and other languages. The payload is the job's arguments as
-- JSON; returns the id of the job that now carries it. Raises if a rate limit refuses it.
create or replace function {schema}.enqueue_job(
    p_type text, p_payload json default '{}', p_queue text default 'default', p_run_at timestamptz default null,
    p_key text default null, p_idempotency_key text default null, p_priority integer default 0,
    p_max_attempts integer default 0, p_max_stalls integer default 3, p_requires text default 'any',
    p_id uuid default null)
returns uuid
language plpgsql security definer set search_path = {schema}, pg_temp as $$
declare
    v_id uuid := coalesce(p_id, new_id());
    v_answer record;
begin
    if p_type !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$' or p_queue !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$'
       or p_requires !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$' then
        raise exception 'type, queue and requires are names: letters, digits, ".", "_" and "-"' using errcode = '22023';
    end if;
    if p_priority not between -100 and 100 or octet_length(p_key) not between 1 and 255
       or octet_length(p_idempotency_key) not between 1 and 255 or octet_length(p_payload::text) > 1048576
       or p_max_attempts not between 0 and 1000000 or p_max_stalls not between 0 and 1000000 then
        raise exception 'priority is -100 to 100, keys are 1 to 255 bytes, the payload is at most 1 MiB' using errcode = '22023';
    end if;
    for v_answer in select * from enqueue(
        null, true, false, array[v_id], array[p_queue], array[p_type], array[convert_to(p_payload::text, 'UTF8')],
        null, case when p_key is not null then array[convert_to(p_key, 'UTF8')] end, null,
        case when p_idempotency_key is not null then array[convert_to(p_idempotency_key, 'UTF8')] end,
        array[p_priority::smallint], array[p_requires], array[p_run_at], null, null,
        array[p_max_attempts], array[p_max_stalls]) order by o_ord
    loop
        if v_answer.o_result in ('limited', 'never') then
            raise exception 'queue % is over its enqueue rate; nothing was stored', v_answer.o_id using errcode = '53400';
        end if;
        if v_answer.o_ord = 1 then
            v_id := v_answer.o_id::uuid;
        end if;
    end loop;
    return v_id;
end $$;
