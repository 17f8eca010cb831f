-- pick_expired: lock the oldest leases that have run out.   $1 now  $2 queues or null  $3 how many
select o_id::text from {schema}.pick_expired($1::timestamptz, $2::text[], $3::integer)
