-- idempotency_lives: the job lives again: keys still remembered hold until its next end.
--   :id
update th_idempotency set expires_at = null where id = :id
