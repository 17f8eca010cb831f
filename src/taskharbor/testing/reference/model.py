"""The reference model: what every store must do, in the stupidest words that say it.

A dict of plain records. No index, no heap, no step shared with a driver: a claim filters all jobs,
sorts them and takes the first. It is slow and it is meant to be read; drivers are held to it by
`taskharbor.testing.statemachine`. Written from the driver contract alone, so that a mistake has to
be made twice before it goes unnoticed.

What the contract leaves to the store is taken over at first sight and must then stay: lease tokens
(given to `reserve`), the numbers of `seq` (their order is ours), and a store's own words for an
attempt that was never settled (`adopt`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from taskharbor.drivers.messages import (
    CancelAnswer,
    CancelResult,
    Claim,
    Deleted,
    Enqueued,
    EnqueueResult,
    Extended,
    Reclaimed,
    ReclaimResult,
    Requeued,
    Settled,
    Speculated,
)
from taskharbor.errors import (
    ConflictError,
    DuplicateJob,
    JobNotFound,
    JobNotInflight,
    LeaseExpired,
    LeaseLost,
    LeaseMismatch,
    NotAllowedInState,
)
from taskharbor.model.clock import EPOCH
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.job import (
    Lease,
    NewJob,
    Progress,
    Update,
)
from taskharbor.model.settlement import Ack, Cancelled, Fail, Release, Retry, Settlement, Stalled
from taskharbor.model.speculation import HeadStart, avoided
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.testing.reference.ends import Ending
from taskharbor.testing.reference.jobs import DATA, UNSAID, WAITS, after_delay, choose, order, plain, waiting

MICROSECOND = timedelta(microseconds=1)


class ReferenceModel(Ending):
    """Every verb of the contract that changes or shows a job, without I/O and with `now` given."""

    # ------------------------------------------------------------------ in

    def enqueue(self, jobs: Sequence[NewJob], now: datetime) -> list[Enqueued]:
        self._admit(self._arriving(jobs, now), now)
        return [self._enqueue(job, now) for job in jobs]

    def waits(self, jobs: Sequence[NewJob], now: datetime) -> dict[str, timedelta]:
        """The enqueue budgets that this call is over, and how long until it would pass each."""
        return self._waits(self._arriving(jobs, now), now)

    def _arriving(self, jobs: Sequence[NewJob], now: datetime) -> Counter[str]:
        """How many jobs are new, per queue and in all: duplicates spend nothing."""
        seen: set[object] = set()
        arriving: Counter[str] = Counter()
        for job in jobs:
            marks = {job.id} | ({(job.queue, job.idempotency_key)} if job.idempotency_key else set())
            if not marks & seen and self._known(job, now) is None:
                seen |= marks
                arriving.update([job.queue, "*"])
        return arriving

    def _enqueue(self, job: NewJob, now: datetime) -> Enqueued:
        if (known := self._known(job, now)) is not None:
            there = self.jobs.get(known)
            return Enqueued(known, EnqueueResult.DUPLICATE, now, there.version if there else 0)
        for there in self._of_key(job.queue, job.key, *WAITS, JobState.BLOCKED):
            self._absorb(there, job, now)
            self.aliases[job.id] = there.id
            self._remember(job, there.id)
            return Enqueued(there.id, EnqueueResult.UPDATED, now, there.version)
        is_blocked = any(self._of_key(job.queue, job.key, JobState.RUNNING))
        record = self._create(job, now)
        if is_blocked:
            record.state = JobState.BLOCKED
            record.update = plain(job.update or Update())
        self._remember(job, job.id)
        return Enqueued(job.id, EnqueueResult.BLOCKED if is_blocked else EnqueueResult.CREATED, now, 1)

    def _known(self, job: NewJob, now: datetime) -> str | None:
        if (target := self.resolve(job.id)) in self.jobs:
            return target
        first, ends_at = self.first_jobs.get((job.queue, job.idempotency_key or b""), (None, None))
        is_remembered = first is not None and (ends_at is None or ends_at > now)
        return self.resolve(first) if first is not None and is_remembered else None

    def _remember(self, job: NewJob, job_id: str) -> None:
        if job.idempotency_key is not None:
            self.first_jobs[job.queue, job.idempotency_key] = (job_id, None)

    def _absorb(self, there: Any, job: NewJob, now: datetime) -> None:
        update = plain(job.update or Update())
        there.run_at = choose(update.run_at, there.run_at, after_delay(job.run_at, job.delay, now), now)
        self._take_over(there, job, update)
        if there.state is JobState.BLOCKED:
            kept = there.update
            there.update = Update(
                kept.data or update.data,
                update.run_at,
                kept.retry or update.retry,
                kept.reset_counts or update.reset_counts,
            )
        else:
            self._move(there, waiting(there.run_at, now))
        self._touch(there, now)

    # ------------------------------------------------------------------ attempts

    def reserve(
        self, claim: Claim, now: datetime, tokens: Mapping[str, str]
    ) -> tuple[list[str], list[Reclaimed]]:
        """The ids handed out, `whole` shows the records; and what was given up."""
        swept = self._reclaim(claim.queues, 100, now)
        taken: list[str] = []
        for queue in claim.queues:
            room = min(claim.limit - len(taken), self._gate(queue, claim, now))
            for job in self._candidates(queue, claim, now)[: max(room, 0)]:
                self._claim(job, claim, tokens.get(job.id, ""), now)
                taken.append(job.id)
        return taken, [one for one in swept if one.result is ReclaimResult.FAILED and not one.is_copy]

    def _candidates(self, queue: str, claim: Claim, now: datetime) -> list[Any]:
        fits = [
            job
            for job in self.jobs.values()
            if job.queue == queue
            and job.requires in claim.lanes
            and self.state_of(job, now) is JobState.READY
            and (claim.types is None or job.type in claim.types)
            and self._may_copy(job, claim.worker_id, now)
        ]
        return sorted(fits, key=lambda job: (claim.lanes.index(job.requires), *order(job)))

    def _may_copy(self, job: Any, worker_id: str, now: datetime) -> bool:
        """A copy is run beside its running original, by somebody else; any other job by anybody."""
        if job.speculates_on is None:
            return True
        original = self.jobs[job.speculates_on]
        slower, until = self.head_starts.get(job.id, ((), now))
        is_elsewhere = worker_id not in (self.made_beside[job.id], original.worker_id)
        return (
            original.state is JobState.RUNNING and is_elsewhere and (worker_id not in slower or now >= until)
        )

    def _claim(self, job: Any, claim: Claim, token: str, now: datetime) -> None:
        for what, whose, _ in self._execute_budgets(job.queue, claim):
            self._spend(what, whose, 1, now)
        if claim.rate is not None:
            self.worker_rates[claim.worker_id] = claim.rate
        self._move(job, JobState.RUNNING)
        job.token, job.worker_id, job.lease_expires_at = token, claim.worker_id, now + claim.lease_for
        job.fence = max(job.fence + 1, (now - EPOCH) // MICROSECOND)
        job.starts += 1
        job.started_at = now
        job.settled_token = job.progress = None
        self._touch(job, now)

    def extend_leases(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        now: datetime,
        progress: Mapping[str, Progress],
        tokens: Mapping[str, str],
    ) -> list[Extended | LeaseLost]:
        answers: list[Extended | LeaseLost] = []
        for lease in leases:
            if (error := self._refusal(lease, now)) is not None:
                answers.append(error)
                continue
            job = self.jobs[lease.job_id]
            job.lease_expires_at = now + lease_for
            job.token = tokens.get(job.id, job.token)
            job.progress = progress.get(job.id, job.progress)
            self._touch(job, now)
            answers.append(Extended(self.whole(job.id).lease, job.cancel_requested, now, job.version))
        return answers

    def settle(self, settlements: Sequence[Settlement], now: datetime) -> list[Settled | LeaseLost]:
        return [self._settle(settlement, now) for settlement in settlements]

    def _refusal(self, lease: Lease, now: datetime) -> LeaseLost | None:
        job = self.jobs.get(lease.job_id)
        if job is None or job.state is not JobState.RUNNING:
            return JobNotInflight(lease.job_id)
        if job.token != lease.token or lease.worker_id not in (None, job.worker_id):
            return LeaseMismatch(lease.job_id)
        return LeaseExpired(lease.job_id) if job.lease_expires_at <= now else None

    def _settle(self, settlement: Settlement, now: datetime) -> Settled | LeaseLost:
        if (error := self._refusal(settlement.lease, now)) is not None:
            return error
        job = self.jobs[settlement.lease.job_id]
        job.settled_token = job.token
        self._apply(job, settlement, now)
        if isinstance(settlement, Ack) and job.state is JobState.COMPLETED and job.speculates_on:
            self._win(self.jobs[job.speculates_on], settlement.result, now)
        self._drop_copy(job.id, now)
        return Settled(job.id, job.state, now, job.version)

    def _apply(self, job: Any, settlement: Settlement, now: datetime) -> None:
        why = getattr(settlement, "trace", None) or getattr(settlement, "reason", None) or None
        error_class = getattr(settlement, "error_class", None)
        if job.cancel_requested and not isinstance(settlement, Cancelled):
            self._leave(job, "cancelled", why, now, error_class)
            return self._end(job, JobState.CANCELLED, now)
        match settlement:
            case Ack(result=result):
                job.result = result
                self._leave(job, "completed", None, now)
                self._end(job, JobState.COMPLETED, now)
            case Retry(reason=reason, failure_kind=kind, attempts=attempts, failed_at=failed_at):
                job.attempts = job.attempts + 1 if attempts is None else attempts
                job.last_error, job.failure_kind, job.failed_at = reason, kind, failed_at or now
                self._leave(job, "retried", why, now, error_class)
                self._wait_again(job, after_delay(settlement.run_at, settlement.delay, now), now)
            case Fail(reason=reason, failure_kind=kind):
                job.attempts += 1
                job.last_error, job.failure_kind, job.failed_at = reason, kind, now
                self._leave(job, "failed", why, now, error_class)
                self._end(job, JobState.FAILED, now)
            case Stalled(reason=reason):
                self._stall(job, reason or UNSAID, now, token=job.token)
            case Cancelled(reason=reason):
                job.last_error = reason or job.last_error
                self._leave(job, "cancelled", why, now)
                self._end(job, JobState.CANCELLED, now)
            case Release(delay=delay):
                self._leave(job, "released", None, now)
                self._wait_again(job, job.run_at if delay is None else after_delay(None, delay, now), now)
        return None

    # ------------------------------------------------------------------ time

    def reclaim(self, limit: int, now: datetime) -> list[Reclaimed]:
        return self._reclaim(None, limit, now)

    def _reclaim(self, queues: Sequence[str] | None, limit: int, now: datetime) -> list[Reclaimed]:
        """One at a time, with a fresh look each time: the end of one may end its copy too."""
        answers: list[Reclaimed] = []
        while len(answers) < limit and (expired := self._expired(queues, now)):
            job = min(expired, key=lambda job: (job.lease_expires_at, job.seq))
            result, is_copy = self._stall(job, UNSAID, now), job.speculates_on is not None
            answers.append(
                Reclaimed(job.id, job.queue, job.type, result, job.stalls, now, job.version, is_copy)
            )
        return answers

    def _expired(self, queues: Sequence[str] | None, now: datetime) -> list[Any]:
        runs = [job for job in self.jobs.values() if job.state is JobState.RUNNING]
        runs = [job for job in runs if queues is None or job.queue in queues]
        return [job for job in runs if job.lease_expires_at <= now]

    def prunable(self, now: datetime) -> set[str]:
        """The listed jobs that a prune may forget now; which of them go first is the store's business."""
        over = [job for job in self.listed() if job.state in TERMINAL]
        ends = {job.id: job.finished_at + keep for job in over if (keep := self._keep(job)) is not None}
        return {job_id for job_id, end in ends.items() if end <= now}

    def prune(self, gone: Iterable[str]) -> None:
        for job_id in gone:
            self._forget(self.jobs[job_id])

    def may_be_gone(self, job_id: str) -> bool:
        """A copy that is over: how long its record stays is not promised."""
        job = self.jobs.get(job_id)
        return job is not None and job.speculates_on is not None and job.state in TERMINAL

    def instants(self) -> set[datetime]:
        """When something changes by itself: expiries, due times, ends of rates, retentions and keys."""
        instants: set[datetime | None] = {ends_at for _, ends_at in self.first_jobs.values()}
        for job in self.jobs.values():
            instants |= {job.lease_expires_at, job.run_at}
            if job.state in TERMINAL and (keep := self._keep(job)) is not None:
                instants.add(job.finished_at + keep)
        return {at for at in instants if at is not None} | self.window_ends()

    # ------------------------------------------------------------------ control

    def cancel(self, ids: Sequence[str], now: datetime) -> list[CancelAnswer]:
        return [self._cancel(job_id, now) for job_id in ids]

    def _cancel(self, job_id: str, now: datetime) -> CancelAnswer:
        job = self.jobs.get(self.resolve(job_id))
        if job is None:
            return CancelAnswer(job_id, CancelResult.NOT_FOUND, None, now, 0)
        if job.state in TERMINAL:
            return CancelAnswer(job.id, CancelResult.ALREADY_OVER, job.state, now, job.version)
        if job.state is JobState.RUNNING:
            if not job.cancel_requested:
                job.cancel_requested = True
                self._touch(job, now)
                self._drop_copy(job.id, now)
            return CancelAnswer(job.id, CancelResult.REQUESTED, job.state, now, job.version)
        job.update = None
        job.last_error = "cancelled while it waited"
        self._touch(job, now)
        self._end(job, JobState.CANCELLED, now)
        return CancelAnswer(job.id, CancelResult.CANCELLED, job.state, now, job.version)

    def cancel_waiting(self, queue: str, key: bytes, now: datetime) -> bool:
        waiting_ones = list(self._of_key(queue, key, *WAITS, JobState.BLOCKED))
        return bool([self._cancel(job.id, now) for job in waiting_ones])

    def requeue(
        self,
        ids: Sequence[str],
        now: datetime,
        edit: Edit = NO_EDIT,
        reset_counts: bool = True,
        run_at: datetime | None = None,
        delay: timedelta | None = None,
    ) -> list[Requeued | JobNotFound | ConflictError]:
        due = after_delay(run_at, delay, now) or now
        return [self._requeue(job_id, edit, reset_counts, due, now) for job_id in ids]

    def _requeue(
        self, job_id: str, edit: Edit, reset_counts: bool, due: datetime, now: datetime
    ) -> Requeued | JobNotFound | ConflictError:
        job = self.jobs.get(self.resolve(job_id))
        if job is None or job.speculates_on is not None:
            return JobNotFound(job_id)
        if job.state not in TERMINAL:
            return NotAllowedInState(job.id, verb="requeue", state=self.state_of(job, now))
        for there in self._of_key(job.queue, job.key, *WAITS, JobState.BLOCKED):
            return DuplicateJob(job.id, there.id)
        is_blocked = any(self._of_key(job.queue, job.key, JobState.RUNNING))
        for name in Edit.__struct_fields__:
            if (value := getattr(edit, name)) is not msgspec.UNSET:
                setattr(job, name, value)
        if reset_counts:
            job.attempts = job.stalls = 0
            job.last_error = job.failed_at = job.failure_kind = None
        job.settled_token = job.result = job.progress = job.finished_at = None
        job.cancel_requested = False
        job.run_at = due
        job.update = plain(Update()) if is_blocked else None
        self._move(job, JobState.BLOCKED if is_blocked else waiting(due, now))
        self._touch(job, now)
        for key, (first, ends_at) in list(self.first_jobs.items()):
            if first == job.id and ends_at is not None:
                if ends_at > now:
                    self.first_jobs[key] = (first, None)
                else:
                    del self.first_jobs[key]
        return Requeued(job.id, job.state, now, job.version)

    def delete(self, ids: Sequence[str], now: datetime) -> list[Deleted | JobNotFound | ConflictError]:
        return [self._delete(job_id, now) for job_id in ids]

    def _delete(self, job_id: str, now: datetime) -> Deleted | JobNotFound | ConflictError:
        job = self.jobs.get(self.resolve(job_id))
        if job is None or job.speculates_on is not None:
            return JobNotFound(job_id)
        if job.state not in TERMINAL:
            return NotAllowedInState(job.id, verb="delete", state=self.state_of(job, now))
        self._forget(job)
        return Deleted(job.id, now)

    # ------------------------------------------------------------------ copies

    def speculate(
        self, job_id: str, copy_id: str, now: datetime, start: HeadStart | None = None
    ) -> Speculated | JobNotFound | ConflictError:
        """`copy_id` is the store's choice, and must be new."""
        job = self.jobs.get(self.resolve(job_id))
        if job is None:
            return JobNotFound(job_id)
        is_alone = job.key is None and job.speculates_on is None and not self._copies(job.id)
        is_first = (job.id, job.fence) not in self.copied_runs
        is_running = job.state is JobState.RUNNING and job.lease_expires_at > now
        if not (is_running and is_alone and is_first and not job.cancel_requested):
            return NotAllowedInState(job.id, verb="speculate", state=job.state)
        values = {name: getattr(job, name) for name in DATA}
        place = min(job.run_at or job.created_at, now) - MICROSECOND
        new = NewJob(id=copy_id, queue=job.queue, run_at=place, max_attempts=1, max_stalls=1, **values)
        copy = self._create(new, now)
        copy.fence, copy.speculates_on = job.fence, job.id
        copy.avoid = avoided(job.worker_id, start, now)
        self.copied_runs.add((job.id, job.fence))
        self.made_beside[copy_id] = job.worker_id
        if start is not None:
            self.head_starts[copy_id] = start.slower, now + start.span
        return Speculated(job.id, copy_id, now, 1)
