-- idempotency_find: the job that answers for an idempotency key, while the key is remembered.
--   :queue :key :now
--   returns id
select id from th_idempotency
where queue = :queue and key = :key and (expires_at is null or expires_at > :now)
