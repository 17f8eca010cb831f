-- prune_idempotency: forget idempotency keys whose time is over.
--   :now :limit
delete from th_idempotency where (queue, key) in (
  select queue, key from th_idempotency where expires_at <= :now order by expires_at limit :limit
)
