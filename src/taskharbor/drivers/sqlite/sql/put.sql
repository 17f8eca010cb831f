-- One job, whole: what is rarer than enqueue, claim and success reads a record and stores it again.

-- name: put_job
-- A new body.
insert into th_job (seq, id, queue, type, lane, priority, created_at, run_at, key, idempotency_key, options, copy_of, payload)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: put_job_again
-- A body that an enqueue of the same key, a merge or an edit has changed.
update th_job set type = :type, lane = :lane, priority = :priority, options = :options, payload = :payload
where seq = :seq

-- name: put_state
-- A job that does not run.
insert into th_job_state (seq, state, flags, version, fence, since, progress)
values (?, ?, ?, ?, ?, ?, ?)
on conflict (seq) do update set
  state = excluded.state, claim = null, finished = null, flags = excluded.flags, version = excluded.version,
  fence = excluded.fence, since = excluded.since, progress = excluded.progress

-- name: put_running
-- A job that runs on under a claim of its own: a cancel was requested.
update th_job_state set claim = :no, flags = :flags, version = :version, progress = :progress where seq = :seq

-- name: put_history
-- What a job has behind it.
insert into th_job_history (seq, attempts, stalls, starts, run_at, started_at, settled_token,
                            last_error, failed_at, failure_kind, history, update_rule)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (seq) do update set
  attempts = excluded.attempts, stalls = excluded.stalls, starts = excluded.starts, run_at = excluded.run_at,
  started_at = excluded.started_at, settled_token = excluded.settled_token, last_error = excluded.last_error,
  failed_at = excluded.failed_at, failure_kind = excluded.failure_kind, history = excluded.history,
  update_rule = excluded.update_rule

-- name: put_waiting
-- A job in line.
insert into th_waiting (queue, lane, type, rank, at, seq, flags)
values (?, ?, ?, ?, ?, ?, ?)

-- name: put_leave
-- A job out of line.
delete from th_waiting
where queue = :queue and lane = :lane and type = :type and rank = :rank and at = :at and seq = :seq

-- name: drop_job
-- Forget the bodies of :seqs.
delete from th_job where seq in (select value from json_each(:seqs))

-- name: drop_state
-- Forget where they are.
delete from th_job_state where seq in (select value from json_each(:seqs))

-- name: drop_results
-- Forget what they returned.
delete from th_job_result where seq in (select value from json_each(:seqs))

-- name: drop_history
-- Forget what they have behind them.
delete from th_job_history where seq in (select value from json_each(:seqs))

-- name: drop_aliases
-- Forget the ids that lead to them.
delete from th_alias where seq in (select value from json_each(:seqs))

-- name: alias_add
-- An id that leads to another job.
insert into th_alias (id, seq) values (:id, :seq) on conflict (id) do update set seq = excluded.seq

-- name: alias_move
-- The ids that led to one job lead to another.
update th_alias set seq = :after where seq = :before

-- name: key_find
-- The live jobs of a key: (holder, its id, its state, next, its id). Lost jobs have no id.
select k.holder, h.id, s.state, k.next, n.id
from th_job_key k
left join th_job h on h.seq = k.holder
left join th_job_state s on s.seq = k.holder
left join th_job n on n.seq = k.next
where k.queue = :queue and k.key = :key

-- name: key_hold
-- A job waits with its key; whatever held the key before is lost.
insert into th_job_key (holder, queue, key) values (:seq, :queue, :key)
on conflict (queue, key) do update set holder = excluded.holder

-- name: key_block
-- A job is blocked behind the holder of its key, or no longer.
update th_job_key set next = :next where queue = :queue and key = :key

-- name: key_free
-- No job holds the key any more.
delete from th_job_key where holder = :seq

-- name: copy_find
-- The speculative copies of a job that have not ended.
select j.seq from th_job j left join th_job_state s on s.seq = j.seq
where j.copy_of = :id and ifnull(s.state, 0) < 4

-- name: copy_mark
-- This run of a job has a copy.
update th_job_state set flags = flags | 32 where seq = :seq

-- name: idempotency_find
-- The job behind an idempotency key that has not expired.
select id from th_idempotency i
where queue = :queue and key = :key
  and iif(expires_at is null,
          exists (select 1 from th_job j where j.id = i.id) or exists (select 1 from th_alias a where a.id = i.id),
          expires_at > :now)

-- name: idempotency_remember
-- Let an idempotency key lead to a job.
insert into th_idempotency (queue, key, id) values (:queue, :key, :id)
on conflict (queue, key) do update set id = excluded.id, expires_at = null

-- name: idempotency_move
-- The keys of one job lead to another.
update th_idempotency set id = :after where id = :before

-- name: idempotency_end
-- The keys of jobs that have ended expire. :ids is a JSON array.
update th_idempotency set expires_at = :expires_at where id in (select value from json_each(:ids))

-- name: idempotency_expired
-- Forget the expired keys of a job that runs again.
delete from th_idempotency where id = :id and expires_at <= :now

-- name: idempotency_revive
-- Its other keys no longer expire.
update th_idempotency set expires_at = null where id = :id
