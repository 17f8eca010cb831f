-- forget_lost: delete what is left of jobs whose rows in `job` are gone, with their keys.
create or replace function {schema}.forget_lost(p_ids uuid[]) returns void
language plpgsql set search_path = {schema}, pg_temp {plan} as $$
declare
    v_lost record;
begin
    for v_lost in
        select s.* from unnest(p_ids) as i(id)
        cross join lateral (select * from job_state k where k.id = i.id and k.key is not null offset 0) s
    loop
        perform follow(clock_timestamp(), array[k.ctid], array[k.next]) from job_key k
        where k.queue = v_lost.queue and k.key = v_lost.key and k.holder = v_lost.id and k.next is not null;
        delete from job_key where queue = v_lost.queue and key = v_lost.key and holder = v_lost.id;
    end loop;
    delete from slot where id = any (p_ids);
    perform forget(p_ids);
end $$;
