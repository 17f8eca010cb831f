-- Attempts end: first-try successes by sets, as `settle_one`, `leave` and `end` in drivers/lifecycle.py would one by
-- one; retries and later successes as settle_alone.py decides. Ends of any other kind go through put.sql.

-- name: settle_claim
-- The claim that a job runs under.
select c.no, c.queue, c.token, c.worker, c.started_at, c.expires_at, c.extensions, c.held
from th_job_state s join th_claim c on c.no = s.claim
where s.seq = :seq and s.state = 3

-- name: settle_claims_of
-- The jobs of :seqs that run, with their claims.
select s.seq, s.claim from json_each(:seqs) x cross join th_job_state s on s.seq = x.value and s.state = 3

-- name: settle_finished
-- The batch of jobs that end together.
insert into th_finished (queue, state, at, started_at, token, seqs)
values (:queue, :state, :at, :started_at, :token, :seqs)

-- name: settle_completed
-- Complete those of :seqs that run under claim :no and need no closer look (flags: KEYED, IDEMPOTENT, CHILD).
-- Repeats `settled` in model/transitions.py for an Ack.
update th_job_state
set state = 4, claim = null, finished = :finished, since = :now, version = version + 1 + :extensions
where seq in (select value from json_each(:seqs)) and claim = :no and state = 3 and flags & ~262 = 0

-- name: settle_completed_range
-- The same for jobs that were enqueued one after the other.
update th_job_state
set state = 4, claim = null, finished = :finished, since = :now, version = version + 1 + :extensions
where seq between :first and :last and claim = :no and state = 3 and flags & ~262 = 0

-- name: settle_read
-- What `settled` in model/transitions.py looks at, for those of :seqs that run and concern no other job (flags: PAST,
-- IDEMPOTENT).
select s.seq, s.claim, s.flags, s.version, s.fence,
       h.attempts, h.stalls, h.starts, h.run_at, h.last_error, h.failed_at, h.failure_kind, h.history
from json_each(:seqs) x
cross join th_job_state s on s.seq = x.value and s.state = 3 and s.flags & ~5 = 0
left join th_job_history h on h.seq = s.seq

-- name: settle_alone
-- Those of :seqs, which settle_read has found, are in another state, and have a past. Version and fence as in
-- `settled` in model/transitions.py.
update th_job_state
set state = :state, claim = null, finished = null, flags = flags | 1, since = :now,
    version = version + 1 + :extensions, fence = ifnull(fence, :started_at)
where seq in (select value from json_each(:seqs))

-- name: settle_results
-- What completed jobs returned.
insert into th_job_result (seq, result) values (?, ?) on conflict (seq) do update set result = excluded.result

-- name: settle_done
-- Those of :seqs that ended in this batch.
select seq from th_job_state where seq in (select value from json_each(:seqs)) and finished = :finished

-- name: settle_forgotten
-- A retention of zero: those of :seqs that run under claim :no and need no closer look leave no record.
delete from th_job_state
where seq in (select value from json_each(:seqs)) and claim = :no and state = 3 and flags & ~262 = 0
returning seq

-- name: settle_flags
-- Which of :seqs have a past, a key, an idempotency key or a parent.
select seq, flags from th_job_state where seq in (select value from json_each(:seqs)) and flags & 263

-- name: settle_keys
-- Free the keys of ended jobs, as far as no job is blocked behind them.
delete from th_job_key where holder in (select value from json_each(:seqs)) and next is null

-- name: settle_next
-- The jobs that were blocked behind ended ones.
select next from th_job_key where holder in (select value from json_each(:seqs)) and next is not null

-- name: settle_pass_on
-- Their keys are theirs now.
update th_job_key set holder = next, next = null
where holder in (select value from json_each(:seqs)) and next is not null

-- name: settle_idempotency
-- The idempotency keys of ended jobs expire.
update th_idempotency set expires_at = :expires_at
where id in (select id from th_job where seq in (select value from json_each(:seqs)))

-- name: claim_leave
-- So many jobs fewer run under a claim that keeps some.
update th_claim set held = held - :count where no = :no and held > :count

-- name: claim_empty
-- No job runs under a claim any more.
delete from th_claim where no = :no
