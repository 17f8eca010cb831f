-- idempotency_remember: let a job answer for an idempotency key until 24 hours after its end.
--   :queue :key :id
insert into th_idempotency (queue, key, id) values (:queue, :key, :id)
on conflict (queue, key) do update set id = excluded.id, expires_at = null
