-- read_leases: what holds of these jobs, to say why a lease was refused.   $1 ids   $2 now
--   a token of null: not running
select p.id::text, case when p.state = 3 then p.token end, p.claimed_by, p.lease_expires_at,
       coalesce($2::timestamptz, clock_timestamp())
from unnest($1::text[]) as i(id)
cross join lateral (select k as whole from {schema}.job k where k.id = i.id::uuid offset 0) j
cross join lateral {schema}.stands(j.whole) p
