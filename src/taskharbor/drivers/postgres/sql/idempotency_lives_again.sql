-- idempotency_lives_again: a requeued job keeps the keys that are still remembered.   $1 id   $2 now
with lapsed as (delete from {schema}.idempotency where job_id = $1::text::uuid and ends_at <= $2)
update {schema}.idempotency set ends_at = null where job_id = $1::text::uuid and ends_at > $2
