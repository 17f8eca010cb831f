-- write_key: who holds a key after a step, and who is blocked behind it; p_holder null: none. The caller has locked it.
create or replace function {schema}.write_key(p_queue text, p_key bytea, p_holder uuid, p_next uuid) returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    if p_holder is null then
        delete from job_key where queue = p_queue and key = p_key;
    else
        insert into job_key as k (queue, key, holder, next, next_seq)
        select p_queue, p_key, p_holder, p_next, (select j.seq from job j where j.id = p_next)
        on conflict (queue, key) do update set holder = excluded.holder, next = excluded.next, next_seq = excluded.next_seq;
    end if;
end $$;
