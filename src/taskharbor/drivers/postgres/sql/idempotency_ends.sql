-- idempotency_ends: jobs are over; until when their keys are remembered.   $1 ids   $2 until
update {schema}.idempotency set ends_at = $2 where job_id = any($1::text[]::uuid[])
