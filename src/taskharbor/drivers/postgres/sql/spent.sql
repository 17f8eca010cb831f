-- spent: what was spent of execute rates, oldest first, and the deciding instant.   $1 now
select name, at, count, coalesce($1::timestamptz, clock_timestamp()) from {schema}.spent
where kind = 'execute' order by at
