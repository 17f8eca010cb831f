-- get: whole records by id; an alias gives the job it stands for.   $1 ids   $2 now
--   each row ends with the place of the id in the question and the deciding instant
select {columns}, i.ord::integer, t.at
from (select coalesce($2::timestamptz, clock_timestamp()) as at) t
cross join unnest($1::text[]) with ordinality as i(id, ord)
left join lateral (select b.target from {schema}.alias b where b.id = i.id::uuid offset 0) a on true
cross join lateral (select k as whole, k.* from {schema}.job k where k.id = coalesce(a.target, i.id::uuid) offset 0) j
cross join lateral {schema}.stands(j.whole) p
