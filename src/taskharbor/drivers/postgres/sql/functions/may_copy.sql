-- may_copy: may this worker claim a copy? Only while its original runs, elsewhere. The same as `may_take` in
-- model/speculation.py.
create or replace function {schema}.may_copy(p_copy uuid, p_worker text, p_now timestamptz) returns boolean
language plpgsql stable set search_path = {schema}, pg_temp {plan} as $$
begin
    return (
        select k.avoid_worker <> p_worker
          and (p_now >= k.avoid_until or p_worker <> all (coalesce(k.avoid_others, '{}')))
          and exists (
            select from job_state o where o.id = k.speculates_on and o.state = 3 and o.worker <> p_worker)
        from job k where k.id = p_copy);
end $$;
