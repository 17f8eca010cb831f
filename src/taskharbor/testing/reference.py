"""The reference model: what every store must do, in the stupidest words that say it.

A dict of plain records. No index, no heap, no step shared with a driver: a claim filters all jobs,
sorts them and takes the first. It is slow and it is meant to be read; drivers are held to it by
`taskharbor.testing.statemachine`. Written from the driver contract alone, so that a mistake has to
be made twice before it goes unnoticed.

What the contract leaves to the store is taken over at first sight and must then stay: lease tokens
(given to `reserve`), the numbers of `seq` (their order is ours), and a store's own words for an
attempt that nobody settled (`adopt`).
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec

from taskharbor.drivers.messages import (
    CancelAnswer,
    CancelResult,
    Claim,
    Counts,
    Deleted,
    Enqueued,
    EnqueueResult,
    Extended,
    Query,
    QueueInfo,
    Reclaimed,
    ReclaimResult,
    Requeued,
    Settled,
    Speculated,
)
from taskharbor.errors import (
    ConflictError,
    DuplicateJob,
    InvalidArgument,
    JobNotFound,
    JobNotInflight,
    LeaseExpired,
    LeaseLost,
    LeaseMismatch,
    NotAllowedInState,
    RateLimited,
)
from taskharbor.model.clock import EPOCH
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.entropy import derived_id
from taskharbor.model.job import (
    FAILURE_TYPE,
    AttemptRecord,
    JobRecord,
    Lease,
    NewJob,
    Progress,
    RunAtRule,
    Update,
)
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueRules, QueueSettings, Retention
from taskharbor.model.settlement import Ack, Cancelled, Fail, Release, Retry, Settlement, Stalled
from taskharbor.model.state import TERMINAL, JobState

MICROSECOND = timedelta(microseconds=1)
NOTHING = timedelta(0)
UNSAID = "\ufffe the store's own words"
DATA = ("type", "payload", "headers", "timeout", "priority", "requires")
RETRY = ("max_attempts", "max_stalls", "min_backoff", "max_backoff")
FIELDS = JobRecord.__struct_fields__
WAITS = (JobState.READY, JobState.SCHEDULED)


class Record(SimpleNamespace):
    """One stored job: the fields of JobRecord, changed in place."""


class ReferenceModel:
    """Every verb of the contract that can change or show a job, without I/O and with `now` given."""

    def __init__(self) -> None:
        self.jobs: dict[str, Any] = {}
        self.aliases: dict[str, str] = {}
        self.first_jobs: dict[tuple[str, bytes], tuple[str, datetime | None]] = {}  # idempotency: job, end
        self.settings: dict[str, dict[str, Any]] = {}
        self.spent: dict[tuple[str, str], list[datetime]] = {}  # (budget, whose): one instant per job
        self.worker_rates: dict[str, RateLimit] = {}
        self.store_seqs: dict[str, int] = {}
        self.moves: Counter[tuple[JobState, JobState]] = Counter()
        self.touched: set[str] = set()
        self._seq = 0
        self._shown: dict[str, JobRecord] = {}

    # ------------------------------------------------------------------ in

    def enqueue(self, jobs: Sequence[NewJob], now: datetime) -> list[Enqueued]:
        self._admit(jobs, now)
        return [self._enqueue(job, now) for job in jobs]

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

    def _create(self, job: NewJob, now: datetime) -> Any:
        self._seq += 1
        record = Record(**{name: default_of(name) for name in FIELDS})
        for name in NewJob.__struct_fields__:
            if name not in ("update", "delay"):
                setattr(record, name, getattr(job, name))
        record.seq = self._seq
        record.run_at = after_delay(job.run_at, job.delay, now)
        record.state = waiting(record.run_at, now)
        record.version, record.created_at, record.updated_at = 1, now, now
        self.jobs[job.id] = record
        self.touched.add(job.id)
        self._shown.pop(job.id, None)
        self.store_seqs.pop(job.id, None)
        return record

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

    def _take_over(self, there: Any, new: Any, update: Update) -> None:
        names = (DATA if update.data else ()) + (RETRY if update.retry else ())
        for name in names:
            setattr(there, name, getattr(new, name))
        if update.reset_counts:
            there.attempts = there.stalls = 0

    def _admit(self, jobs: Sequence[NewJob], now: datetime) -> None:
        """Spend the enqueue budgets of a whole call, or nothing of them."""
        wanted = self._wanted(jobs, now)
        for queue, (count, rate) in wanted.items():
            if count > rate.count:
                raise InvalidArgument(f"{count} at once never pass the rate of {queue}")
        for queue, wait in self.waits(jobs, now).items():
            raise RateLimited(queue, wait)
        for queue, (count, _) in wanted.items():
            self._spend("enqueue", queue, count, now)

    def waits(self, jobs: Sequence[NewJob], now: datetime) -> dict[str, timedelta]:
        """Every enqueue budget that this call is over, and how long until it would pass it."""
        wanted = self._wanted(jobs, now)
        return {
            queue: self._wait("enqueue", queue, rate, count, now)
            for queue, (count, rate) in wanted.items()
            if self._room("enqueue", queue, rate, now) < count <= rate.count
        }

    def _wanted(self, jobs: Sequence[NewJob], now: datetime) -> dict[str, tuple[int, RateLimit]]:
        """How much of each enqueue budget a call needs: duplicates need nothing."""
        seen: set[object] = set()
        arriving: Counter[str] = Counter()
        for job in jobs:
            marks = {job.id} | ({(job.queue, job.idempotency_key)} if job.idempotency_key else set())
            if not marks & seen and self._known(job, now) is None:
                seen |= marks
                arriving.update([job.queue, "*"])
        rates = {queue: self._rule(queue, "enqueue_rate") for queue in arriving}
        return {queue: (arriving[queue], rate) for queue, rate in rates.items() if rate is not None}

    # ------------------------------------------------------------------ attempts

    def reserve(self, claim: Claim, now: datetime, tokens: Mapping[str, str]) -> list[str]:
        """The ids handed out; `whole` shows the records."""
        self._reclaim(claim.queues, 100, now)
        taken: list[str] = []
        for queue in claim.queues:
            room = min(claim.limit - len(taken), self._gate(queue, claim, now))
            for job in self._candidates(queue, claim, now)[: max(room, 0)]:
                self._claim(job, claim, tokens.get(job.id, ""), now)
                taken.append(job.id)
        return taken

    def _candidates(self, queue: str, claim: Claim, now: datetime) -> list[Any]:
        fits = [
            job
            for job in self.jobs.values()
            if job.queue == queue
            and job.requires in claim.lanes
            and self.state_of(job, now) is JobState.READY
            and (claim.types is None or job.type in claim.types)
            and job.avoid_worker != claim.worker_id
        ]
        return sorted(fits, key=lambda job: (claim.lanes.index(job.requires), *order(job)))

    def _gate(self, queue: str, claim: Claim, now: datetime) -> int:
        room = claim.limit
        for level in (queue, "*"):
            if self._rule(level, "paused"):
                return 0
            if (most := self._rule(level, "max_running")) is not None:
                room = min(room, most - self._running(level, now))
        for what, whose, rate in self._execute_budgets(queue, claim):
            room = min(room, self._room(what, whose, rate, now))
        return room

    def _execute_budgets(self, queue: str, claim: Claim) -> list[tuple[str, str, RateLimit]]:
        levels = [("execute", level, self._rule(level, "execute_rate")) for level in (queue, "*")]
        return [entry for entry in [*levels, ("worker", claim.worker_id, claim.rate)] if entry[2] is not None]

    def _claim(self, job: Any, claim: Claim, token: str, now: datetime) -> None:
        for what, whose, _ in self._execute_budgets(job.queue, claim):
            self._spend(what, whose, 1, now)
        if claim.rate is not None:
            self.worker_rates[claim.worker_id] = claim.rate
        self._move(job, JobState.RUNNING)
        job.token, job.claimed_by, job.lease_expires_at = token, claim.worker_id, now + claim.lease_for
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
        if job.token != lease.token or lease.claimed_by not in (None, job.claimed_by):
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
        if job.cancel_requested and not isinstance(settlement, Cancelled):
            self._leave(job, "cancelled", why, now)
            return self._end(job, JobState.CANCELLED, now)
        match settlement:
            case Ack(result=result):
                job.result = result
                self._leave(job, "completed", None, now)
                self._end(job, JobState.COMPLETED, now)
            case Retry(reason=reason, kind=kind, attempts=attempts, failed_at=failed_at):
                job.attempts = job.attempts + 1 if attempts is None else attempts
                job.last_error, job.failure_kind, job.failed_at = reason, kind, failed_at or now
                self._leave(job, "retried", why, now)
                self._wait_again(job, after_delay(settlement.run_at, settlement.delay, now), now)
            case Fail(reason=reason, kind=kind):
                job.attempts += 1
                job.last_error, job.failure_kind, job.failed_at = reason, kind, now
                self._leave(job, "failed", why, now)
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

    def _stall(self, job: Any, why: str, now: datetime, token: str | None = None) -> ReclaimResult:
        job.settled_token = token
        job.stalls += not job.cancel_requested
        self._leave(job, "cancelled" if job.cancel_requested else "stalled", why, now)
        if job.cancel_requested:
            self._end(job, JobState.CANCELLED, now)
            return ReclaimResult.CANCELLED
        if 0 < job.max_stalls <= job.stalls:
            job.last_error, job.failure_kind, job.failed_at = why, "stalled", now
            self._end(job, JobState.FAILED, now)
            return ReclaimResult.FAILED
        return ReclaimResult.MERGED if self._wait_again(job, None, now) else ReclaimResult.REQUEUED

    def _leave(self, job: Any, outcome: str, why: str | None, now: datetime) -> None:
        """The attempt is over: into the history with it, away with the lease."""
        if outcome != "completed" or job.starts > 1:
            entry = AttemptRecord(job.fence, job.claimed_by, job.started_at, now, outcome, why)
            job.history = (*job.history, entry)[-10:]
        job.token = job.lease_expires_at = job.claimed_by = None
        self._touch(job, now)

    def _end(self, job: Any, state: JobState, now: datetime) -> None:
        """The job is over, and whatever waited for that happens."""
        self._move(job, state)
        job.finished_at = now
        for blocked in self._of_key(job.queue, job.key, JobState.BLOCKED):
            blocked.update = None
            self._move(blocked, waiting(blocked.run_at, now))
            self._touch(blocked, now)
        for key, (job_id, ends_at) in self.first_jobs.items():
            if job_id == job.id and (ends_at is None or ends_at > now):
                self.first_jobs[key] = (job_id, now + timedelta(hours=24))
        if state is JobState.FAILED:
            self._tell_failure(job, now)
        self._drop_copy(job.id, now)
        if self._keep(job) == NOTHING and job.speculates_on is None:
            self._forget(job)

    def _wait_again(self, job: Any, run_at: datetime | None, now: datetime) -> bool:
        """The job waits for another try, as one with the job blocked behind it; was there one?"""
        job.run_at = run_at
        blocked_jobs = list(self._of_key(job.queue, job.key, JobState.BLOCKED))
        for blocked in blocked_jobs:
            job.run_at = choose(blocked.update.run_at, run_at, blocked.run_at, now)
            self._take_over(job, blocked, blocked.update)
            del self.jobs[blocked.id]
            self.aliases[blocked.id] = job.id
            self.touched.add(blocked.id)
            for key, (job_id, _) in self.first_jobs.items():
                if job_id == blocked.id:
                    self.first_jobs[key] = (job.id, None)
        self._move(job, waiting(job.run_at, now))
        return bool(blocked_jobs)

    def _tell_failure(self, job: Any, now: datetime) -> None:
        fail_queue = self._rule(job.queue, "fail_queue") or self._rule("*", "fail_queue")
        if fail_queue is None or job.type == FAILURE_TYPE or job.speculates_on is not None:
            return
        told = {name: getattr(job, name) for name in ("id", "type", "queue", "attempts", "stalls")}
        told |= {"key": None if job.key is None else job.key.decode(), "kind": job.failure_kind}
        told |= {"payload": base64.b64encode(job.payload).decode(), "error": job.last_error}
        new = NewJob(
            id=derived_id(job.id, job.fence, "failed", now),
            type=FAILURE_TYPE,
            payload=msgspec.json.encode(told),
            queue=fail_queue,
            max_attempts=100,
            max_stalls=3,
            min_backoff=timedelta(seconds=10),
            max_backoff=timedelta(minutes=15),
        )
        self._create(new, now)

    # ------------------------------------------------------------------ time

    def reclaim(self, limit: int, now: datetime) -> list[Reclaimed]:
        return self._reclaim(None, limit, now)

    def _reclaim(self, queues: Sequence[str] | None, limit: int, now: datetime) -> list[Reclaimed]:
        """One after the other, looking anew each time: the end of one may take its copy with it."""
        answers: list[Reclaimed] = []
        while len(answers) < limit and (expired := self._expired(queues, now)):
            job = min(expired, key=lambda job: (job.lease_expires_at, job.seq))
            answers.append(Reclaimed(job.id, self._stall(job, UNSAID, now), now, job.version))
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
        """A copy that is over: how long its record stays is nobody's promise."""
        job = self.jobs.get(job_id)
        return job is not None and job.speculates_on is not None and job.state in TERMINAL

    def _keep(self, job: Any) -> timedelta | None:
        kept = self._rule(job.queue, "retention") or self._rule("*", "retention") or Retention()
        span: timedelta | None = getattr(kept, job.state.value)
        return span

    def _forget(self, job: Any) -> None:
        self.jobs.pop(job.id, None)
        self.store_seqs.pop(job.id, None)
        self.touched.add(job.id)
        for alias in [alias for alias in self.aliases if self.resolve(alias) == job.id]:
            del self.aliases[alias]
            self.touched.add(alias)

    def instants(self) -> set[datetime]:
        """When something changes by itself: expiries, due times, ends of rates, retentions and keys."""
        instants: set[datetime | None] = {ends_at for _, ends_at in self.first_jobs.values()}
        for job in self.jobs.values():
            instants |= {job.lease_expires_at, job.run_at}
            if job.state in TERMINAL and (keep := self._keep(job)) is not None:
                instants.add(job.finished_at + keep)
        for (what, whose), spent in self.spent.items():
            rate = self.worker_rates[whose] if what == "worker" else self._rule(whose, f"{what}_rate")
            instants |= {at + rate.per for at in spent}
        return {at for at in instants if at is not None}

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

    def configure_queue(self, settings: QueueSettings) -> QueueRules:
        rules = self.settings.setdefault(settings.queue, {})
        for name in QueueRules.__struct_fields__:
            if (value := getattr(settings, name)) is not msgspec.UNSET:
                rules[name] = value
        for what in ("enqueue", "execute"):
            if rules.get(f"{what}_rate") is None:  # an unset budget remembers nothing
                self.spent.pop((what, settings.queue), None)
        return QueueRules(**rules)

    # ------------------------------------------------------------------ copies

    def speculate(
        self, job_id: str, copy_id: str, now: datetime
    ) -> Speculated | JobNotFound | ConflictError:
        """`copy_id` is the store's choice, and must be new."""
        job = self.jobs.get(self.resolve(job_id))
        if job is None:
            return JobNotFound(job_id)
        is_alone = job.key is None and job.speculates_on is None and not self._copies(job.id)
        is_running = job.state is JobState.RUNNING and job.lease_expires_at > now
        if not (is_running and is_alone and not job.cancel_requested):
            return NotAllowedInState(job.id, verb="speculate", state=job.state)
        values = {name: getattr(job, name) for name in DATA}
        new = NewJob(id=copy_id, queue=job.queue, max_attempts=1, max_stalls=1, **values)
        copy = self._create(new, now)
        copy.fence, copy.speculates_on, copy.avoid_worker = job.fence, job.id, job.claimed_by
        return Speculated(job.id, copy_id, now, 1)

    def _copies(self, job_id: str) -> list[Any]:
        """The live copy of a job, if it has one."""
        copies = [job for job in self.jobs.values() if job.speculates_on == job_id]
        return [copy for copy in copies if copy.state not in TERMINAL]

    def _drop_copy(self, job_id: str, now: datetime) -> None:
        for copy in self._copies(job_id):
            copy.token = copy.lease_expires_at = copy.claimed_by = None
            self._touch(copy, now)
            self._end(copy, JobState.CANCELLED, now)

    def _win(self, original: Any, result: bytes | None, now: datetime) -> None:
        """The original is completed by its copy; its own later settlement finds nothing in flight."""
        original.result = result
        if original.state is JobState.RUNNING:
            self._leave(original, "superseded", UNSAID, now)
        else:
            self._touch(original, now)
        self._end(original, JobState.COMPLETED, now)

    # ------------------------------------------------------------------ looking

    def get(self, job_id: str, now: datetime) -> JobRecord | None:
        job = self.jobs.get(self.resolve(job_id))
        return None if job is None else self._show(job, now)

    def whole(self, job_id: str) -> JobRecord:
        """The record as it is stored and as `reserve` hands it out, token included."""
        return JobRecord(**vars(self.jobs[job_id]) | {"seq": self.store_seqs.get(job_id, -1)})

    def find(self, query: Query, now: datetime) -> list[JobRecord]:
        """Every job that fits, in the order asked for; the pages are the store's business."""
        shown = [self._show(job, now) for job in self.listed()]
        fits = [
            job
            for job in shown
            if (query.queue is None or job.queue == query.queue)
            and (query.states is None or job.state in query.states)
            and (query.type is None or job.type == query.type)
            and (query.key is None or job.key == query.key)
            and (query.claimed_by is None or job.claimed_by == query.claimed_by)
            and (query.failure_kind is None or job.failure_kind == query.failure_kind)
        ]
        return fits[::-1] if query.newest_first else fits

    def count(self, now: datetime) -> dict[str, Counts]:
        names = {job.queue for job in self.listed()}
        return {queue: self._counts(queue, now) for queue in names}

    def queues(self, now: datetime) -> list[QueueInfo]:
        names = {job.queue for job in self.listed()} | set(self.settings)
        return [
            QueueInfo(
                queue=queue,
                rules=QueueRules(**self.settings.get(queue, {})),
                counts=self._counts(queue, now),
                oldest_ready_at=min(self._ready_since(queue, now), default=None),
            )
            for queue in sorted(names)
        ]

    def listed(self) -> list[Any]:
        """Every job but the copies, in enqueue order: new records are added at the end of the dict."""
        return [job for job in self.jobs.values() if job.speculates_on is None]

    def resolve(self, job_id: str) -> str:
        while job_id in self.aliases:
            job_id = self.aliases[job_id]
        return job_id

    def state_of(self, job: Any, now: datetime) -> JobState:
        """As it reads: due means ready, promoted or not."""
        state: JobState = job.state
        return waiting(job.run_at, now) if state in WAITS else state

    def adopt(self, seen: JobRecord) -> None:
        """Take over what the contract leaves to the store, where nothing was taken over yet."""
        job = self.jobs[seen.id]
        self.store_seqs.setdefault(seen.id, seen.seq)
        if job.last_error == UNSAID:
            job.last_error = seen.last_error or None
        if len(job.history) == len(seen.history):
            job.history = tuple(
                msgspec.structs.replace(ours, error=theirs.error or None) if ours.error == UNSAID else ours
                for ours, theirs in zip(job.history, seen.history, strict=True)
            )
        if job.type == FAILURE_TYPE and _is_same_story(job.payload, seen.payload):
            job.payload = seen.payload
        self._shown.pop(seen.id, None)

    # ------------------------------------------------------------------ small parts

    def _of_key(self, queue: str, key: bytes | None, *states: JobState) -> list[Any]:
        if key is None:
            return []
        same = [job for job in self.jobs.values() if job.queue == queue and job.key == key]
        return [job for job in same if job.state in states]

    def _running(self, level: str, now: datetime) -> int:
        """Unexpired leases of a queue, or of the harbor."""
        runs = [job for job in self.jobs.values() if job.state is JobState.RUNNING]
        return sum(job.lease_expires_at > now for job in runs if level in ("*", job.queue))

    def _rule(self, level: str, name: str) -> Any:
        return self.settings.get(level, {}).get(name)

    def _room(self, what: str, whose: str, rate: RateLimit, now: datetime) -> int:
        """What is left of a budget at `now`: the window (now - per, now] counts."""
        spent = self.spent.get((what, whose), [])
        return rate.count - sum(at > now - rate.per for at in spent)

    def _wait(self, what: str, whose: str, rate: RateLimit, wanted: int, now: datetime) -> timedelta:
        """How long until so many fit: tried at each instant when one leaves the window."""
        for at in sorted(self.spent[what, whose]):
            if self._room(what, whose, rate, at + rate.per) >= wanted:
                return at + rate.per - now
        raise AssertionError("a batch that can pass passes when the window is empty")

    def _spend(self, what: str, whose: str, count: int, now: datetime) -> None:
        self.spent.setdefault((what, whose), []).extend([now] * count)

    def _counts(self, queue: str, now: datetime) -> Counts:
        states = Counter(self.state_of(job, now).value for job in self.listed() if job.queue == queue)
        return Counts(**states)

    def _ready_since(self, queue: str, now: datetime) -> list[datetime]:
        ready = [job for job in self.listed() if job.queue == queue]
        return [order(job)[1] for job in ready if self.state_of(job, now) is JobState.READY]

    def _move(self, job: Any, state: JobState) -> None:
        self.moves[job.state, state] += 1
        job.state = state

    def _touch(self, job: Any, now: datetime) -> None:
        job.version += 1
        job.updated_at = now
        self.touched.add(job.id)
        self._shown.pop(job.id, None)

    def _show(self, job: Any, now: datetime) -> JobRecord:
        state = self.state_of(job, now)
        shown = self._shown.get(job.id)
        if shown is None or shown.state is not state:
            shown = msgspec.structs.replace(self.whole(job.id), state=state, token=None)
            self._shown[job.id] = shown
        return shown


def plain(update: Update) -> Update:
    """The flags with `reset_counts` said out loud."""
    return Update(update.data, update.run_at, update.retry, update.resets_counts)


def after_delay(run_at: datetime | None, delay: timedelta | None, now: datetime) -> datetime | None:
    """The stored run_at: a delay counts from the deciding clock, none or zero means now."""
    return now + delay if delay else run_at


def waiting(run_at: datetime | None, now: datetime) -> JobState:
    return JobState.READY if run_at is None or run_at <= now else JobState.SCHEDULED


def choose(rule: RunAtRule, kept: datetime | None, new: datetime | None, now: datetime) -> datetime | None:
    """Which run_at wins; an empty one compares as `now`, and of two equal ones the kept one stays."""
    if rule is True or rule is False:
        return new if rule else kept
    best = max if rule == "if_later" else min
    return best(kept, new, key=lambda run_at: run_at or now)


def order(job: Any) -> tuple[int, datetime, int]:
    """The order of claims within a lane."""
    return -job.priority, job.run_at or job.created_at, job.seq


def default_of(name: str) -> Any:
    default = _DEFAULTS.get(name, msgspec.NODEFAULT)
    return None if default is msgspec.NODEFAULT else default


def _is_same_story(ours: bytes, theirs: bytes) -> bool:
    """Whether two payloads of a failure job say the same, in whatever order and with whose words."""
    try:
        told, other = msgspec.json.decode(ours), msgspec.json.decode(theirs)
    except msgspec.DecodeError:
        return False
    if told["error"] == UNSAID and other.get("error"):
        told["error"] = other["error"]
    return bool(told == other)


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(JobRecord)}
