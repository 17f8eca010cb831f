-- idempotency_find: the job that answers for an idempotency key, while the key is remembered. One that is not over and
-- not there was lost, and keeps nobody out.
--   :queue :key :now
--   returns id
select id from th_idempotency i
where queue = :queue and key = :key
  and iif(expires_at is null,
          exists (select 1 from th_body b where b.id = i.id) or exists (select 1 from th_alias a where a.id = i.id),
          expires_at > :now)
