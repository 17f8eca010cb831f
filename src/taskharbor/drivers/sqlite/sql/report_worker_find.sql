-- report_worker_find: what is known of a worker.
--   :id
--   returns (expires_at, JSON)
select expires_at, info from th_worker where id = :id
