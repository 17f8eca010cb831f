-- put_past: remember what body does not say about a job.
--   :seq :version :blocked :run_at :failure_kind :data
insert into th_past (seq, version, blocked, run_at, failure_kind, data)
values (:seq, :version, :blocked, :run_at, :failure_kind, :data)
on conflict (seq) do update set
  version = excluded.version, blocked = excluded.blocked, run_at = excluded.run_at,
  failure_kind = excluded.failure_kind, data = excluded.data
