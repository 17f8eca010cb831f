-- forget_worker: drop a report; had it not lapsed?   $1 worker   $2 now
delete from {schema}.worker where worker_id = $1::text
returning expires_at > coalesce($2::timestamptz, clock_timestamp())
