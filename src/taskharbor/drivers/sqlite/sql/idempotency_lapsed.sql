-- idempotency_lapsed: a job that lives again does not answer for keys that were already forgotten.
--   :id :now
delete from th_idempotency where id = :id and expires_at <= :now
