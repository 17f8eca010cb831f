-- hold_role: take or keep a role, or learn who has it; one row.   $1 role  $2 holder  $3 ttl in µs  $4 now
with at as materialized (
    select coalesce($4::timestamptz, clock_timestamp()) as now
), taken as (
    insert into {schema}.role as r
    select $1::text, $2::text, 1, {schema}.after(at.now, $3::bigint) from at
    on conflict (role) do update set
        holder = excluded.holder,
        expires_at = excluded.expires_at,
        -- The same term while one holder keeps it without a gap.
        term = r.term + case when r.expires_at > (select now from at) then 0 else 1 end
    where r.holder = excluded.holder or r.expires_at <= (select now from at)
    returning holder, term, expires_at, true as is_mine
)
select * from taken
union all
select r.holder, r.term, r.expires_at, false from {schema}.role r
where r.role = $1::text and not exists (select from taken)
