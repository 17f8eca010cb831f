-- promote: due jobs become ready.   $1 now  $2 how many
select {schema}.promote($1::timestamptz, $2::integer)
