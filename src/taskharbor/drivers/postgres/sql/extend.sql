-- extend: count leases anew from now.   $1 now  $2 ids  $3 lease of each  $4 tokens  $5 workers  $6 progress  $7 lease in µs
select * from {schema}.extend($1::timestamptz, $2::uuid[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::bigint)
