-- extend: count leases anew from now.   $1 now  $2 ids  $3 tokens  $4 workers  $5 progress  $6 lease in µs
select * from {schema}.extend($1::timestamptz, $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint)
