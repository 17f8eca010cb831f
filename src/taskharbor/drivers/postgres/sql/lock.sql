-- lock: deal with one thing at a time, until the transaction ends.   $1 kind   $2 name   $3 key or null
select pg_advisory_xact_lock({schema}.lock_id($1::text, $2::text, $3::bytea))
