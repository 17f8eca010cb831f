-- is_stopped_child: whether a job that waits is a child, and nothing else, of a parent that is being stopped, as `may_run` in
-- drivers/families.py. For jobs with more bonds the function may_run decides.
create or replace function {schema}.is_stopped_child(p_id uuid) returns boolean
language plpgsql stable set search_path = {schema}, pg_temp {plan} as $$
begin
    return exists (
        select from (select k.parent from job k where k.id = p_id and k.parent is not null offset 0) j
        cross join lateral (select from job_state k where k.id = p_id and k.link_flags & 64 <> 0 offset 0) s
        cross join lateral (select from family k where k.id = j.parent and k.is_stopping offset 0) f);
end $$;
