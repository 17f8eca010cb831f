-- report_worker: say that a worker lives.
--   :id :expires_at   :info JSON
insert into th_worker (id, expires_at, info) values (:id, :expires_at, :info)
on conflict (id) do update set expires_at = excluded.expires_at, info = excluded.info
