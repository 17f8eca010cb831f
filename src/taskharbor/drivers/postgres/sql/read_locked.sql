-- read_locked: whole records, read after they were locked.   $1 ids
select {columns}
from unnest($1::uuid[]) as i(id)
cross join lateral (select * from {schema}.place q where q.id = i.id offset 0) p
cross join lateral (select * from {schema}.job k where k.id = i.id offset 0) j
