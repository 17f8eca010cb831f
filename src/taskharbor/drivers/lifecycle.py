"""What each verb does to a job and to the jobs around it, for every store.

`model/transitions.py` changes one record. This module decides which records a verb changes, and in which
order: a job that stops running releases the job blocked behind it, a failed job gets its failure job, a
finished one starts its retention. What a cancel does to one job is here; to a parent and its children, in
`drivers/family_verbs.py`.

A store brings a `JobsInStep`: its records inside one atomic step. The functions are synchronous. A store
that has to fetch first (Postgres, Redis) loads what the step can touch, runs the function, then writes
what has changed. What each function may read:

- `enqueue_one`, `admit`: the job of the id and of its alias, the job of its idempotency key, the jobs of
  its key; `admit` also the rules of the queue and of `*`
- `settle_one`, `reclaim_one`: the job, the one blocked behind it, its live copy, its original; the rules
- `cancel`: the job of the id and of its alias, its live copy; the rules
- `requeue`, `delete`: the job of the id and of its alias, the jobs of its key
- `speculate`: the job of the id and of its alias, its live copy; it takes one seq

Where a store repeats one of these rules in SQL or Lua for speed, a comment there names the function, and
the conformance kit holds both to the same answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol, cast

from taskharbor.drivers.messages import (
    CancelAnswer,
    CancelResult,
    Deleted,
    Enqueued,
    EnqueueResult,
    Extended,
    Reclaimed,
    Requeued,
    Settled,
    Speculated,
    reclaimed,
)
from taskharbor.errors import (
    ConflictError,
    DuplicateJob,
    InvalidArgument,
    JobNotFound,
    LeaseLost,
    NotAllowedInState,
)
from taskharbor.model.edit import Edit
from taskharbor.model.job import FAILURE_TYPE, NO_TIME, FailureKind, JobRecord, Lease, NewJob, Progress
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE, QueueRules, fail_queue_of, retention_of
from taskharbor.model.settlement import Ack, Settlement
from taskharbor.model.speculation import HeadStart
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.model.transitions import (
    absorb,
    cancelled,
    dropped,
    extended,
    failure_job,
    held,
    merged,
    new_record,
    requeued,
    settled,
    shown,
    speculative_copy,
    stalled,
    unblocked,
    won,
)


class JobsOfKey(NamedTuple):
    """The ids of the live jobs of one (queue, key), by state. At most one waits or is blocked."""

    waiting: str | None = None
    running: str | None = None
    blocked: str | None = None

    @property
    def next(self) -> str | None:
        """The job that takes in the next enqueue of this key."""
        return self.waiting or self.blocked


NO_JOBS = JobsOfKey()


class Follows(Protocol):
    """The jobs of a store with the capability `workflows`; the rest of it is in `drivers/families.py`."""

    def follow(self, job: JobRecord) -> None:
        """A job with bonds or a family has ended: what that does to others is carried out in this step."""
        ...


class JobsInStep(Protocol):
    """The jobs of a store inside one atomic step.

    Every method sees what the step has written so far, and nothing that another step writes meanwhile. All
    writes of the step are stored together, or none of them.
    """

    @property
    def now(self) -> datetime:
        """The one instant of this step, from the clock that decides."""
        ...

    # ------------------------------------------------------------------ reading

    def get(self, job_id: str) -> JobRecord | None:
        """The job with exactly this id. Does not follow an alias."""
        ...

    def find(self, job_id: str) -> JobRecord | None:
        """The job with this id, or the one that its alias leads to."""
        ...

    def jobs_of_key(self, queue: str, key: bytes) -> JobsOfKey:
        """The live jobs of a key, without ids that `get` cannot find: a lost record must not block a key."""
        ...

    def copy_of(self, job: JobRecord) -> JobRecord | None:
        """The speculative copy of a job that has not ended. Only jobs without a key have one."""
        ...

    def run_had_copy(self, job: JobRecord) -> bool:
        """Whether `add_copy` was called for this run of the job, that is, at its present fence."""
        ...

    def rules(self, queue: str) -> QueueRules:
        """The rules of a queue, or of the harbor under the name `*`; `NO_RULES` where none are set."""
        ...

    def next_seq(self) -> int:
        """The number of a new record: unique, and larger than those of all steps before."""
        ...

    # ------------------------------------------------------------------ writing

    def put(self, job: JobRecord) -> None:
        """Store a record in place of the one with its id, or as a new one. A ready job wakes workers.

        A record that is replaced was read in this step before, by `get`, `find`, `jobs_of_key` or `copy_of`.
        """
        ...

    def drop(self, job: JobRecord) -> None:
        """Forget a finished job and its aliases. Its idempotency keys stay remembered until they expire."""
        ...

    def alias(self, job_id: str, target: JobRecord) -> None:
        """From now on `find(job_id)` is `target`."""
        ...

    def merge_away(self, job: JobRecord, target: JobRecord) -> None:
        """Forget a record; its id, its aliases and its idempotency keys lead to `target` from now on."""
        ...

    def add_copy(self, copy: JobRecord, original: JobRecord) -> None:
        """Store a new copy, and remember for `run_had_copy` that this run of the original got one."""
        ...

    def add_failure_job(self, job: NewJob) -> None:
        """Enqueue a failure job, with the first free seq.

        Where its queue is out of reach of the step (another slot of a cluster), keep it in an outbox that is
        written with the step.
        """
        ...

    def notify_cancel(self, job: JobRecord) -> None:
        """Once the step is stored, wake the worker `job.worker_id`, if any: it need not go on."""
        ...

    # ------------------------------------------------------------------ idempotency keys

    def remembered(self, queue: str, key: bytes) -> str | None:
        """The job id under an idempotency key, if the key is set and has not expired. The job may be gone."""
        ...

    def remember(self, job: NewJob, record: JobRecord) -> None:
        """Let the idempotency key of `job`, which has one, lead to `record`."""
        ...

    def end_keys(self, job: JobRecord) -> None:
        """The job has ended: its idempotency keys expire `IDEMPOTENCY_WINDOW` from now."""
        ...

    def revive_keys(self, job: JobRecord) -> None:
        """The job waits again: keys that have not expired no longer do; expired ones are forgotten."""
        ...


# ------------------------------------------------------------------ in


def enqueue_one(jobs: JobsInStep, job: NewJob) -> Enqueued:
    """Store a new job, or apply it to the job of its key, or answer with the job it repeats."""
    now = jobs.now
    if (there := repeated(jobs, job)) is not None:
        job_id, version = there
        return Enqueued(job_id, EnqueueResult.DUPLICATE, now, version)
    of_key = NO_JOBS if job.key is None else jobs.jobs_of_key(job.queue, job.key)
    waiting = None if of_key.next is None else jobs.get(of_key.next)
    if waiting is not None:
        record = absorb(waiting, job, now)
        jobs.put(record)
        jobs.alias(job.id, record)
        result = EnqueueResult.UPDATED
    else:
        record = new_record(job, jobs.next_seq(), now, blocked=of_key.running is not None)
        jobs.put(record)
        result = EnqueueResult.BLOCKED if record.state is JobState.BLOCKED else EnqueueResult.CREATED
    if job.idempotency_key is not None:
        jobs.remember(job, record)
    return Enqueued(record.id, result, now, record.version)


def arriving(jobs: JobsInStep, new: Sequence[NewJob]) -> Counter[str]:
    """How many of these jobs are new, per queue: duplicates spend no budget."""
    ids: set[str] = set()
    keys: set[tuple[str, bytes]] = set()
    count: Counter[str] = Counter()
    for job in new:
        key = None if job.idempotency_key is None else (job.queue, job.idempotency_key)
        if job.id not in ids and key not in keys and repeated(jobs, job) is None:
            count[job.queue] += 1
            ids.add(job.id)
            if key is not None:
                keys.add(key)
    return count


def admit(jobs: JobsInStep, new: Sequence[NewJob]) -> list[tuple[str, RateLimit, int]]:
    """The enqueue budgets that these jobs spend: queue or `*`, its rate, and how much.

    The store spends all of them or raises `RateLimited`. Raises here what no waiting can help.
    """
    count = arriving(jobs, new)
    spends = [
        (queue, rate, amount)
        for queue, amount in (count + Counter({EVERY_QUEUE: count.total()})).items()
        if (rate := jobs.rules(queue).enqueue_rate) is not None
    ]
    for queue, rate, amount in spends:
        if amount > rate.count:
            raise never_admitted(queue, rate, amount)
    return spends


def never_admitted(queue: str, rate: RateLimit, amount: int) -> InvalidArgument:
    return InvalidArgument(
        f"{amount} jobs in one call can never pass the rate of {rate.count} per {rate.per} "
        f"of queue {queue!r}; send them in parts"
    )


def repeated(jobs: JobsInStep, job: NewJob) -> tuple[str, int] | None:
    """Id and version of the job that this one repeats, by its own id or by its idempotency key."""
    there = jobs.find(job.id)
    if there is None and job.idempotency_key is not None:
        first = jobs.remembered(job.queue, job.idempotency_key)
        there = None if first is None else jobs.find(first)
        if first is not None and there is None:  # the job is forgotten, its key not yet
            return first, 0
    return None if there is None else (there.id, there.version)


# ------------------------------------------------------------------ attempts


def extend_one(
    jobs: JobsInStep, lease: Lease, lease_for: timedelta, progress: Progress | None
) -> Extended | LeaseLost:
    """Count a lease from now on."""
    job = held(jobs.get(lease.job_id), lease, jobs.now)
    if isinstance(job, LeaseLost):
        return job
    after = extended(job, lease_for, jobs.now, progress)
    jobs.put(after)
    return Extended(after.lease, after.cancel_requested, jobs.now, after.version)


def settle_one(jobs: JobsInStep, settlement: Settlement) -> Settled | LeaseLost:
    """End an attempt as its worker asks, if its lease still holds."""
    now = jobs.now
    job = held(jobs.get(settlement.lease.job_id), settlement.lease, now)
    if isinstance(job, LeaseLost):
        return job
    after = settled(job, settlement, now)
    if after.state is JobState.COMPLETED and job.speculates_on is not None and isinstance(settlement, Ack):
        win(jobs, job.speculates_on, settlement.result)
    drop_copy(jobs, job)
    after = leave(jobs, job, after)
    return Settled(after.id, after.state, now, after.version)


def reclaim_one(jobs: JobsInStep, job_id: str) -> Reclaimed | None:
    """End an expired lease.

    None when the lease has not expired or is gone: another call was first, or the job was a copy that
    ended together with its original.
    """
    job, now = jobs.get(job_id), jobs.now
    if job is None or job.lease_expires_at is None or job.lease_expires_at > now:
        return None
    had_blocked = _blocked_behind(jobs, job) is not None
    after = stalled(job, "", now)
    if after.state in TERMINAL:
        drop_copy(jobs, job)
    after = leave(jobs, job, after)
    return reclaimed(after, now, had_blocked=had_blocked)


def leave(jobs: JobsInStep, before: JobRecord, after: JobRecord) -> JobRecord:
    """Store a job that stopped running; the job blocked behind it is released or merged into it."""
    blocked = _blocked_behind(jobs, before)
    if blocked is not None and after.state not in TERMINAL:
        after = merged(after, blocked, jobs.now)
        jobs.merge_away(blocked, after)
    jobs.put(after)
    if after.state in TERMINAL:
        if blocked is not None:
            jobs.put(unblocked(blocked, jobs.now))
        end(jobs, after)
    return after


def end(jobs: JobsInStep, job: JobRecord) -> None:
    """What follows when a stored job has ended: its failure job, its idempotency keys, its retention."""
    own, harbor = jobs.rules(job.queue), jobs.rules(EVERY_QUEUE)
    if (
        job.state is JobState.FAILED
        and job.type != FAILURE_TYPE
        and job.speculates_on is None
        and job.failure_kind != FailureKind.CHILD_FAILED  # the child that failed has its own
    ):
        fail_queue = fail_queue_of(own, harbor)
        if fail_queue is not None:
            jobs.add_failure_job(failure_job(job, fail_queue, jobs.now))
    jobs.end_keys(job)
    if job.bonds is not None or job.family is not None:
        cast("Follows", jobs).follow(job)
    elif retention_of(own, harbor).of(job.state) == NO_TIME:
        jobs.drop(job)


def _blocked_behind(jobs: JobsInStep, job: JobRecord) -> JobRecord | None:
    blocked = None if job.key is None else jobs.jobs_of_key(job.queue, job.key).blocked
    return None if blocked is None else jobs.get(blocked)


# ------------------------------------------------------------------ copies


def speculate(
    jobs: JobsInStep, job_id: str, head_start: HeadStart | None
) -> Speculated | JobNotFound | ConflictError:
    """Start a copy of a running job, at most one a run."""
    job, now = jobs.find(job_id), jobs.now
    if job is None:
        return JobNotFound(job_id)
    if not _may_have_copy(jobs, job):
        return NotAllowedInState(job_id, verb="speculate", state=shown(job, now).state)
    copy = speculative_copy(job, jobs.next_seq(), now, head_start)
    jobs.add_copy(copy, job)
    return Speculated(job.id, copy.id, now, copy.version)


def _may_have_copy(jobs: JobsInStep, job: JobRecord) -> bool:
    return (
        job.state is JobState.RUNNING
        and job.lease_expires_at is not None
        and job.lease_expires_at > jobs.now
        and not job.cancel_requested
        and job.key is None
        and job.speculates_on is None
        and jobs.copy_of(job) is None
        and not jobs.run_had_copy(job)
    )


def win(jobs: JobsInStep, original_id: str, result: bytes | None) -> None:
    """A copy finished first: its original completes with the copy's result, and its worker may stop."""
    original = jobs.get(original_id)
    if original is None or original.state in TERMINAL:
        return
    after = won(original, result, jobs.now)
    jobs.put(after)
    jobs.notify_cancel(original)
    end(jobs, after)


def drop_copy(jobs: JobsInStep, job: JobRecord) -> None:
    """Cancel the copy of a job. Before the job leaves: without retention, nothing leads to it afterwards."""
    if job.key is not None or job.speculates_on is not None:
        return
    copy = jobs.copy_of(job)
    if copy is not None:
        jobs.put(dropped(copy, jobs.now))
        jobs.notify_cancel(copy)


# ------------------------------------------------------------------ control


def cancel(jobs: JobsInStep, job_id: str) -> CancelAnswer:
    """Cancel a waiting or blocked job at once; ask the worker of a running one to stop."""
    job, now = jobs.find(job_id), jobs.now
    if job is None:
        return CancelAnswer(job_id, CancelResult.NOT_FOUND, None, now, 0)
    if job.state in TERMINAL:
        return CancelAnswer(job.id, CancelResult.ALREADY_OVER, job.state, now, job.version)
    is_running = job.state is JobState.RUNNING
    result = CancelResult.REQUESTED if is_running else CancelResult.CANCELLED
    if job.cancel_requested:
        return CancelAnswer(job.id, result, job.state, now, job.version)
    after = cancelled(job, now)
    jobs.put(after)
    drop_copy(jobs, after)
    if is_running:
        jobs.notify_cancel(after)
    else:
        end(jobs, after)
    return CancelAnswer(after.id, result, after.state, now, after.version)


def cancel_waiting(jobs: JobsInStep, queue: str, key: bytes) -> bool:
    """Cancel the job of a key that waits or is blocked; False when there is none."""
    waiting = jobs.jobs_of_key(queue, key).next
    if waiting is not None:
        cancel(jobs, waiting)
    return waiting is not None


def requeue(
    jobs: JobsInStep, job_id: str, edit: Edit, *, reset_counts: bool, run_at: datetime | None
) -> Requeued | JobNotFound | ConflictError:
    """Let a finished job run again."""
    job, now = jobs.find(job_id), jobs.now
    if job is None or job.speculates_on is not None:
        return JobNotFound(job_id)
    if job.state not in TERMINAL:
        return NotAllowedInState(job.id, verb="requeue", state=shown(job, now).state)
    of_key = NO_JOBS if job.key is None else jobs.jobs_of_key(job.queue, job.key)
    if of_key.next is not None:
        return DuplicateJob(job.id, of_key.next)
    blocked = of_key.running is not None
    after = requeued(job, edit, run_at, now, reset_counts=reset_counts, blocked=blocked)
    jobs.put(after)
    jobs.revive_keys(after)
    return Requeued(after.id, after.state, now, after.version)


def delete(jobs: JobsInStep, job_id: str) -> Deleted | JobNotFound | ConflictError:
    """Forget a finished job."""
    job, now = jobs.find(job_id), jobs.now
    if job is None or job.speculates_on is not None:
        return JobNotFound(job_id)
    if job.state not in TERMINAL:
        return NotAllowedInState(job.id, verb="delete", state=shown(job, now).state)
    jobs.drop(job)
    return Deleted(job.id, now)
