-- repair_key: jobs of a key whose rows in `job` were lost give way. The caller has locked the key. Returns its holder and
-- the job blocked behind it; p_first holds a key that has none.
create or replace function {schema}.repair_key(p_queue text, p_key bytea, p_first uuid, out o_holder uuid, out o_next uuid)
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
begin
    select k.holder, k.next into o_holder, o_next from job_key k where k.queue = p_queue and k.key = p_key;
    if o_next is not null and not exists (select from job j where j.id = o_next) then
        perform forget(array[o_next]);
        update job_key set next = null, next_seq = null where queue = p_queue and key = p_key;
        o_next := null;
    end if;
    if o_holder <> p_first and not exists (select from job j where j.id = o_holder) then
        perform forget(array[o_holder]);
        if o_next is null then
            update job_key set holder = p_first where queue = p_queue and key = p_key;
            o_holder := p_first;
        else
            perform follow(clock_timestamp(), array[k.ctid], array[o_next]) from job_key k
            where k.queue = p_queue and k.key = p_key;
            o_holder := o_next;
            o_next := null;
        end if;
    end if;
end $$;
