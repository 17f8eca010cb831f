-- prune: forget what its retention lets go.   $1 now  $2 how many
select {schema}.prune($1::timestamptz, $2::integer)
