-- leave_line: jobs that were ready are forgotten, and stand in line no more.   $1 ids
delete from {schema}.ready where ctid = any (array(
    select r.ctid from unnest($1::text[]::uuid[]) as i(id)
    cross join lateral (select q.ctid from {schema}.ready q where q.id = i.id and not q.is_plain offset 0) r))
