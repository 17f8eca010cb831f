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
-- Complete those of :seqs that run under claim :no and have no flags but :mask (KEYED, IDEMPOTENT, CHILD; of members BOUND).
-- Repeats `settled` in model/transitions.py for an Ack.
update th_job_state
set state = 4, claim = null, finished = :finished, since = :now, version = version + 1 + :extensions
where seq in (select value from json_each(:seqs)) and claim = :no and state = 3 and flags & ~:mask = 0

-- name: settle_completed_range
-- The same for jobs that were enqueued one after the other.
update th_job_state
set state = 4, claim = null, finished = :finished, since = :now, version = version + 1 + :extensions
where seq between :first and :last and claim = :no and state = 3 and flags & ~:mask = 0

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
-- Which of :seqs have a past, a key, an idempotency key or bonds.
select seq, flags from th_job_state where seq in (select value from json_each(:seqs)) and flags & 391

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

-- name: member_acks
-- Those of :seqs that an ack by sets may complete, though they have bonds. Repeats `_is_parent` in
-- drivers/family_verbs.py; a deadline would have to be forgotten, too.
select s.seq, s.version, b.parent, ifnull(f.followers, 0)
from json_each(:seqs) x
cross join th_job_state s on s.seq = x.value and s.flags & ~390 = 0
left join th_bond b on b.seq = s.seq
left join th_family f on f.seq = s.seq
where b.deadline is null and ifnull(f.total, 0) = 0 and f.stopping is null

-- name: member_followers
-- The jobs that come after :seqs, which have just completed: whether the usual release is all that may follow, how many
-- jobs each comes after, and its place in line. Repeats what `_release_after` and `release` in drivers/families.py ask.
-- A job with a past may be parked, or was released before.
select e.dep, e.dependent,
       s.state = 2 and s.flags & 1 = 0 and not e.is_park and f.waits_for > 0 and f.stopping is null and j.run_at is null
         and ifnull(b.bonds ->> 'done_by', 'worker') = 'worker' and ifnull(b.bonds ->> 'when', 'success') <> 'failure',
       json_array_length(b.bonds, '$.after'), j.queue, j.lane, j.type, -j.priority, j.created_at, s.flags
from json_each(:seqs) x
cross join th_edge e on e.dep = x.value
cross join th_job j on j.seq = e.dependent
cross join th_job_state s on s.seq = j.seq
left join th_bond b on b.seq = j.seq
left join th_family f on f.seq = j.seq

-- name: member_released
-- What they waited for is over: `released` in model/family_steps.py.
update th_job_state set state = 0, version = version + 1, since = :now where seq in (select value from json_each(:seqs))

-- name: member_waits
-- The same in their counts.
update th_family set waits_for = 0 where seq in (select value from json_each(:seqs))
