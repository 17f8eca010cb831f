-- family_now: the counts of a parent as they are now: less what the stripes have counted since they were written.
create or replace function {schema}.family_now(p_id uuid, p_family json) returns text
language plpgsql stable set search_path = {schema}, pg_temp {plan} as $$
declare
    v_ended bigint := (select sum(t.ended) from stripe t where t.parent = p_id);
begin
    if v_ended is null then
        return p_family::text;
    end if;
    return jsonb_set(p_family::jsonb, '{open}', to_jsonb(coalesce((p_family ->> 'open')::bigint, 0) - v_ended))::text;
end $$;
