-- idempotency_ends: a job is over; until when its keys are remembered.   $1 id   $2 until
update {schema}.idempotency set ends_at = $2 where job_id = $1::text::uuid
