-- idempotency_ended: the job is over: its keys are remembered for a while.
--   :id :expires_at
update th_idempotency set expires_at = :expires_at where id = :id
