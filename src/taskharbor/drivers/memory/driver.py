"""MemoryDriver: the contract in its plainest words. Read this first.

Each verb takes the store's lock, does its step on plain records with the functions of
`taskharbor.model.transitions`, and answers. What finds a job quickly lives in records.py, what may
hold it back in gates.py, and the steps that touch several jobs at once in store.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.memory.listing import page_of, shown
from taskharbor.drivers.memory.store import Store
from taskharbor.drivers.messages import (
    CancelAnswer,
    CancelResult,
    Claim,
    Claimed,
    Counts,
    Deleted,
    DriverInfo,
    Enqueued,
    Exchanged,
    Extended,
    Page,
    Query,
    QueueInfo,
    Reclaimed,
    Requeued,
    RoleLease,
    Settled,
    Speculated,
    Wakeups,
)
from taskharbor.errors import ConflictError, DuplicateJob, JobNotFound, LeaseLost, NotAllowedInState
from taskharbor.model.clock import Clock
from taskharbor.model.edit import Edit
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, Lease, NewJob, Progress
from taskharbor.model.presence import Sample, TypeInfo, WorkerInfo, WorkerReport
from taskharbor.model.queue import QueueRules, QueueSettings
from taskharbor.model.schedule import Schedule, StoredSchedule
from taskharbor.model.settlement import Settlement
from taskharbor.model.speculation import HeadStart
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.model.transitions import (
    cancelled,
    extended,
    held,
    requeued,
    speculative_copy,
    starting_at,
)

# memory://name is one store for everybody in this process who names it.
_named: dict[str, Store] = {}

_CAPABILITIES = Capabilities(wakeups=True, blocking_enqueue=True, atomic_across_queues=True)


class MemoryDriver(Driver):
    """A store in this process: for tests, for trying things out, and as the plainest example."""

    def __init__(
        self,
        name: str = "",
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        super().__init__(_CAPABILITIES, clock=clock, entropy=entropy)
        self._name = name
        self._store = store or (_named.setdefault(name, Store()) if name else Store())

    @classmethod
    def from_url(
        cls, url: str, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> MemoryDriver:
        """memory:// is private to this connect, memory://name is shared in the process."""
        parts = urlsplit(url)
        return cls(
            parts.netloc + parts.path + (f"?{parts.query}" if parts.query else ""),
            clock=clock,
            entropy=entropy,
        )

    def another(self) -> MemoryDriver:
        entropy = self.entropy.split("another")
        one = MemoryDriver(self._name, store=self._store, clock=self.clock, entropy=entropy)
        return one.of_the_same_store(self)

    # ------------------------------------------------------------------ jobs in

    async def do_enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        return self.do_enqueue_blocking(jobs, now, None)

    def do_enqueue_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> list[Enqueued]:
        with self._step(now) as (store, at):
            if store.gates.limit_enqueues:
                store.gates.admit(store.arriving(jobs, at), at)
            return [store.enqueue(job, at) for job in jobs]

    # ------------------------------------------------------------------ attempts

    async def do_reserve(self, claim: Claim, now: datetime | None) -> Claimed:
        with self._step(now) as (store, at):
            return store.reserve(claim, self.entropy.token(), at)

    async def do_extend_leases(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[Extended | LeaseLost]:
        with self._step(now) as (store, at):
            return [_extend(store, lease, lease_for, progress.get(lease.job_id), at) for lease in leases]

    async def do_settle(
        self, settlements: Sequence[Settlement], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        with self._step(now) as (store, at):
            return [store.settle(settlement, at) for settlement in settlements]

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        with self._step(now) as (store, at):
            settled = [store.settle(settlement, at) for settlement in settlements]
            claimed = store.reserve(claim, self.entropy.token(), at)
            return Exchanged(settled, claimed.jobs, given_up=claimed.given_up)

    # ------------------------------------------------------------------ time

    async def do_reclaim(self, limit: int, now: datetime | None) -> list[Reclaimed]:
        with self._step(now) as (store, at):
            return store.reclaim(list(store.records.leases), limit, at)

    async def do_promote(self, limit: int, now: datetime | None) -> int:
        with self._step(now) as (store, at):
            return store.promote(list(store.records.later), at, limit)

    async def do_prune(self, limit: int, now: datetime | None) -> int:
        with self._step(now) as (store, at):
            store.idempotency.prune(limit, at)
            return store.prune(limit, at)

    # ------------------------------------------------------------------ control

    async def do_cancel(self, ids: Sequence[str], now: datetime | None) -> list[CancelAnswer]:
        with self._step(now) as (store, at):
            return [_cancel(store, job_id, at) for job_id in ids]

    async def do_cancel_waiting(self, queue: str, key: bytes, now: datetime | None) -> bool:
        with self._step(now) as (store, at):
            slot = store.records.slot_of(queue, key)
            waiting = slot.waiting or slot.blocked
            if waiting is not None:
                _cancel(store, waiting, at)
            return waiting is not None

    async def do_requeue(
        self,
        ids: Sequence[str],
        edit: Edit,
        reset_counts: bool,
        run_at: datetime | None,
        delay: timedelta | None,
        now: datetime | None,
    ) -> list[Requeued | JobNotFound | ConflictError]:
        with self._step(now) as (store, at):
            due = starting_at(run_at, delay, at)
            return [_requeue(store, job_id, edit, reset_counts, due, at) for job_id in ids]

    async def do_delete(
        self, ids: Sequence[str], now: datetime | None
    ) -> list[Deleted | JobNotFound | ConflictError]:
        with self._step(now) as (store, at):
            return [_delete(store, job_id, at) for job_id in ids]

    async def do_configure_queue(self, settings: QueueSettings, now: datetime | None) -> QueueRules:
        with self._step(now) as (store, _):
            rules = store.gates.configure(settings)
            store.listeners.work(store.records.queues())  # a gate may have opened
            return rules

    async def do_speculate(
        self, job_id: str, head_start: HeadStart | None, now: datetime | None
    ) -> Speculated | JobNotFound | ConflictError:
        with self._step(now) as (store, at):
            job = store.records.find(job_id)
            if job is None:
                return JobNotFound(job_id)
            if not _may_have_copy(store, job, at):
                return NotAllowedInState(job_id, verb="speculate", state=shown(job, at).state)
            copy = speculative_copy(job, store.records.next_seq(), at, head_start)
            store.records.add_copy(copy, job)
            return Speculated(job.id, copy.id, at, copy.version)

    # ------------------------------------------------------------------ looking

    async def do_get(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        with self._step(now) as (store, at):
            found = [store.records.find(job_id) for job_id in ids]
            return [None if job is None else shown(job, at) for job in found]

    async def do_find(self, query: Query, now: datetime | None) -> Page:
        with self._step(now) as (store, at):
            return page_of(store.records, query, at)

    async def do_count(self, queues: Sequence[str] | None, now: datetime | None) -> dict[str, Counts]:
        with self._step(now) as (store, at):
            return {queue: _counts(store, queue, at) for queue in sorted(queues or store.records.queues())}

    async def do_queues(self, now: datetime | None) -> list[QueueInfo]:
        with self._step(now) as (store, at):
            names = store.records.queues() | store.gates.configured()
            return [_queue_info(store, queue, at) for queue in sorted(names)]

    async def do_info(self) -> DriverInfo:
        return DriverInfo(
            driver="memory",
            store="this process",
            location=f"memory://{self._name}",
            durability="D0",
            schema="none",
            at=self.clock.now(),
        )

    # ------------------------------------------------------------------ presence

    async def do_report_worker(
        self, report: WorkerReport, samples: Sequence[Sample], ttl: timedelta, now: datetime | None
    ) -> None:
        with self._step(now) as (store, at):
            store.presence.report(report, samples, ttl, at)

    async def do_forget_worker(self, worker_id: str, now: datetime | None) -> bool:
        with self._step(now) as (store, at):
            return store.presence.forget(worker_id, at)

    async def do_workers(self, now: datetime | None) -> list[WorkerInfo]:
        with self._step(now) as (store, at):
            return store.presence.workers(at)

    async def do_types(self, now: datetime | None) -> list[TypeInfo]:
        with self._step(now) as (store, _):
            return store.presence.types()

    async def do_hold_role(self, role: str, holder: str, ttl: timedelta, now: datetime | None) -> RoleLease:
        with self._step(now) as (store, at):
            return store.presence.hold(role, holder, ttl, at)

    async def do_release_role(self, role: str, holder: str, now: datetime | None) -> bool:
        with self._step(now) as (store, at):
            return store.presence.release(role, holder, at)

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Wakeups:
        return self._store.listeners.listen(queues, worker_id)

    # ------------------------------------------------------------------ schedules

    async def do_put_schedule(self, schedule: Schedule, now: datetime | None) -> StoredSchedule:
        with self._step(now) as (store, at):
            return store.presence.put(schedule, at)

    async def do_advance_schedule(self, name: str, tick: datetime, fired: bool, now: datetime | None) -> bool:
        with self._step(now) as (store, at):
            return store.presence.advance(name, tick, fired, at)

    async def do_delete_schedule(self, name: str, now: datetime | None) -> bool:
        with self._step(now) as (store, _):
            return store.presence.delete(name)

    async def do_schedules(self, now: datetime | None) -> list[StoredSchedule]:
        with self._step(now) as (store, _):
            return store.presence.schedules()

    # ------------------------------------------------------------------ one step

    @contextmanager
    def _step(self, now: datetime | None) -> Iterator[tuple[Store, datetime]]:
        """The store under its lock, and the one `now` of this step; afterwards the hints go out."""
        store = self._store
        with store.lock:
            yield store, now or self.clock.now()
            if woken := store.records.take_woken():
                store.listeners.work(woken)


def _extend(
    store: Store, lease: Lease, lease_for: timedelta, progress: Progress | None, now: datetime
) -> Extended | LeaseLost:
    job = held(store.records.jobs.get(lease.job_id), lease, now)
    if isinstance(job, LeaseLost):
        return job
    record = extended(job, lease_for, now, progress)
    store.records.put(record)
    return Extended(record.lease, record.cancel_requested, now, record.version)


def _cancel(store: Store, job_id: str, now: datetime) -> CancelAnswer:
    job = store.records.find(job_id)
    if job is None:
        return CancelAnswer(job_id, CancelResult.NOT_FOUND, None, now, 0)
    if job.state in TERMINAL:
        return CancelAnswer(job.id, CancelResult.ALREADY_OVER, job.state, now, job.version)
    is_running = job.state is JobState.RUNNING
    result = CancelResult.REQUESTED if is_running else CancelResult.CANCELLED
    if job.cancel_requested:
        return CancelAnswer(job.id, result, job.state, now, job.version)
    after = cancelled(job, now)
    store.records.put(after)
    store.drop_copy_of(after, now)
    if is_running:
        store.listeners.cancel(job.id, job.claimed_by)
    else:
        store.end(after, now)
    return CancelAnswer(after.id, result, after.state, now, after.version)


def _requeue(
    store: Store, job_id: str, edit: Edit, reset_counts: bool, run_at: datetime | None, now: datetime
) -> Requeued | JobNotFound | ConflictError:
    job = store.records.find(job_id)
    if job is None or job.speculates_on is not None:
        return JobNotFound(job_id)
    if job.state not in TERMINAL:
        return NotAllowedInState(job.id, verb="requeue", state=shown(job, now).state)
    slot = store.records.key_slot(job)
    if slot is not None and (there := slot.waiting or slot.blocked) is not None:
        return DuplicateJob(job.id, there)
    after = requeued(
        job,
        edit,
        run_at,
        now,
        reset_counts=reset_counts,
        blocked=slot is not None and slot.running is not None,
    )
    store.records.put(after)
    store.idempotency.lives_again(job.id, now)
    return Requeued(after.id, after.state, now, after.version)


def _delete(store: Store, job_id: str, now: datetime) -> Deleted | JobNotFound | ConflictError:
    job = store.records.find(job_id)
    if job is None or job.speculates_on is not None:
        return JobNotFound(job_id)
    if job.state not in TERMINAL:
        return NotAllowedInState(job.id, verb="delete", state=shown(job, now).state)
    store.records.drop(job)
    return Deleted(job.id, now)


def _may_have_copy(store: Store, job: JobRecord, now: datetime) -> bool:
    return (
        job.state is JobState.RUNNING
        and job.lease_expires_at is not None
        and job.lease_expires_at > now
        and not job.cancel_requested
        and job.key is None
        and job.speculates_on is None
        and store.records.live_copy_of(job.id) is None
        and not store.records.run_had_copy(job)
    )


def _counts(store: Store, queue: str, now: datetime) -> Counts:
    store.promote((queue,), now)  # a due job reads ready
    counted = store.records.counts(queue)
    return Counts(**{state.value: counted[state] for state in JobState})


def _queue_info(store: Store, queue: str, now: datetime) -> QueueInfo:
    counts = _counts(store, queue, now)
    return QueueInfo(
        queue=queue,
        rules=store.gates.rules(queue),
        counts=counts,
        oldest_ready_at=store.records.oldest_ready_at(queue),
        throttled_until=store.gates.throttled_until(queue, now),
    )
