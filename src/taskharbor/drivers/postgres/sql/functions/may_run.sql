-- may_run: whether a job that waits may be handed out, as `may_run` in drivers/families.py: its deadline has not passed,
-- and its parent is not being stopped.
create or replace function {schema}.may_run(p_id uuid, p_now timestamptz) returns boolean
language plpgsql stable set search_path = {schema}, pg_temp {plan} as $$
begin
    return not exists (
        select from family f
        left join lateral (select k.is_stopping, k.spares from family k where k.id = f.parent offset 0) p on true
        where f.id = p_id and (f.deadline <= p_now or p.is_stopping and not (p.spares and f.is_spared)));
end $$;
