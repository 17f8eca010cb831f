-- get: whole records by id; an alias gives the job it stands for.   $1 ids   $2 now
--   each row ends with the place of the id in the question and the deciding instant
select {columns}, i.ord::integer, t.at
from (select coalesce($2::timestamptz, clock_timestamp()) as at) t
cross join unnest($1::text[]) with ordinality as i(id, ord)
left join {schema}.alias a on a.id = i.id::uuid
join {schema}.place p on p.id = coalesce(a.target, i.id::uuid)
join {schema}.job j on j.id = p.id
