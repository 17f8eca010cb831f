"""MemoryDriver: the contract in its plainest words. Read this first.

Each verb takes the store's lock, does its step with the functions of `taskharbor.drivers.lifecycle`, and
answers. store.py brings the records to those functions; records.py finds a job quickly, gates.py holds
jobs back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from taskharbor.drivers import families, family_verbs, lifecycle
from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.families import CALL_LIMIT
from taskharbor.drivers.family_ends import with_ended
from taskharbor.drivers.memory.queries import page_of
from taskharbor.drivers.memory.store import Store
from taskharbor.drivers.messages import (
    CancelAnswer,
    Claim,
    Claimed,
    Counts,
    Deleted,
    DriverInfo,
    Enqueued,
    Exchanged,
    Extended,
    Noted,
    Page,
    Promoted,
    Query,
    QueueInfo,
    Reclaimed,
    Requeued,
    Resolution,
    Resolved,
    RoleLease,
    Settled,
    Speculated,
    Wakeups,
)
from taskharbor.errors import BrokenBond, ConflictError, JobNotFound, LeaseLost
from taskharbor.model.clock import Clock
from taskharbor.model.edit import Edit
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, Lease, NewJob, Note, Progress
from taskharbor.model.logbook import LogEntry, LogKey
from taskharbor.model.presence import Sample, TypeInfo, WorkerInfo, WorkerReport
from taskharbor.model.queue import QueueRules, QueueSettings
from taskharbor.model.schedule import Schedule, StoredSchedule
from taskharbor.model.settlement import Settlement
from taskharbor.model.speculation import HeadStart
from taskharbor.model.state import JobState
from taskharbor.model.transitions import shown, starting_at

# memory://name is one store for all of this process that use the name.
_named: dict[str, Store] = {}

_CAPABILITIES = Capabilities(
    wakeups=True, blocking_enqueue=True, atomic_across_queues=True, logbook=True, workflows=True
)


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
        with self._step(now) as store:
            return store.enqueue(jobs)

    def do_enqueue_blocking(self, jobs: Sequence[NewJob], now: datetime | None, tx: Any) -> list[Enqueued]:
        with self._step(now) as store:
            if any(job.bonds is not None for job in jobs):
                return with_ended(store.enqueue_family(jobs, None), families.take_ends(store))
            return store.enqueue(jobs)

    async def do_enqueue_family(
        self, jobs: Sequence[NewJob], by: Lease | None, now: datetime | None
    ) -> list[Enqueued]:
        with self._step(now) as store:
            return with_ended(store.enqueue_family(jobs, by), families.take_ends(store))

    async def do_resolve(
        self, items: Sequence[Resolution], now: datetime | None
    ) -> list[Resolved | JobNotFound | ConflictError]:
        with self._step(now) as store:
            store.check_resolutions(items)
            return families.concluded(store, [store.resolve_one(item) for item in items])

    async def do_note(
        self, notes: Sequence[Note], now: datetime | None
    ) -> list[Noted | LeaseLost | BrokenBond]:
        with self._step(now) as store:
            store.has_families = True
            return [family_verbs.note_one(store, note) for note in notes]

    # ------------------------------------------------------------------ attempts

    async def do_reserve(self, claim: Claim, now: datetime | None) -> Claimed:
        with self._step(now) as store:
            return store.reserve(claim, self.entropy.token())

    async def do_extend_leases(
        self,
        leases: Sequence[Lease],
        lease_for: timedelta,
        progress: Mapping[str, Progress],
        now: datetime | None,
    ) -> list[Extended | LeaseLost]:
        with self._step(now) as store:
            return [
                lifecycle.extend_one(store, lease, lease_for, progress.get(lease.job_id)) for lease in leases
            ]

    async def do_settle(
        self, settlements: Sequence[Settlement], now: datetime | None
    ) -> list[Settled | LeaseLost]:
        with self._step(now) as store:
            return store.settle(settlements)

    async def do_exchange(
        self, settlements: Sequence[Settlement], claim: Claim, now: datetime | None
    ) -> Exchanged:
        with self._step(now) as store:
            settled = store.settle(settlements)
            claimed = store.reserve(claim, self.entropy.token())
            return Exchanged(settled, claimed.jobs, given_up=claimed.given_up, ended=claimed.ended)

    # ------------------------------------------------------------------ time

    async def do_reclaim(self, limit: int, now: datetime | None) -> list[Reclaimed]:
        with self._step(now) as store:
            answers = store.reclaim(list(store.leases), limit)
            return families.concluded(store, answers) if store.has_families else answers

    async def do_promote(self, limit: int, now: datetime | None) -> Promoted:
        with self._step(now) as store:
            owed = families.sweep(store, limit) if store.has_families else 0
            moved = store.promote(list(store.later), limit)
            return Promoted(owed + moved, families.take_ends(store))

    async def do_prune(self, limit: int, now: datetime | None) -> int:
        with self._step(now) as store:
            store.idempotency.prune(limit, store.now)
            store.logbook.prune(limit, store.now)
            return store.prune(limit)

    # ------------------------------------------------------------------ control

    async def do_cancel(self, ids: Sequence[str], now: datetime | None) -> list[CancelAnswer]:
        with self._step(now) as store:
            return families.concluded(store, [family_verbs.cancel(store, job_id) for job_id in ids])

    async def do_cancel_waiting(self, queue: str, key: bytes, now: datetime | None) -> bool:
        with self._step(now) as store:
            return lifecycle.cancel_waiting(store, queue, key)

    async def do_requeue(
        self,
        ids: Sequence[str],
        edit: Edit,
        reset_counts: bool,
        run_at: datetime | None,
        delay: timedelta | None,
        now: datetime | None,
    ) -> list[Requeued | JobNotFound | ConflictError]:
        with self._step(now) as store:
            due = starting_at(run_at, delay, store.now)
            return [
                family_verbs.requeue(store, job_id, edit, reset_counts=reset_counts, run_at=due)
                for job_id in ids
            ]

    async def do_delete(
        self, ids: Sequence[str], now: datetime | None
    ) -> list[Deleted | JobNotFound | ConflictError]:
        with self._step(now) as store:
            return [family_verbs.delete(store, job_id) for job_id in ids]

    async def do_configure_queue(self, settings: QueueSettings, now: datetime | None) -> QueueRules:
        with self._step(now) as store:
            rules = store.gates.configure(settings)
            store.subscriptions.work(store.queues())  # a gate may have opened
            return rules

    async def do_speculate(
        self, job_id: str, head_start: HeadStart | None, now: datetime | None
    ) -> Speculated | JobNotFound | ConflictError:
        with self._step(now) as store:
            return family_verbs.speculate(store, job_id, head_start)

    # ------------------------------------------------------------------ looking

    async def do_get(self, ids: Sequence[str], now: datetime | None) -> list[JobRecord | None]:
        with self._step(now) as store:
            found = [store.find(job_id) for job_id in ids]
            return [None if job is None else shown(job, store.now) for job in found]

    async def do_find(self, query: Query, now: datetime | None) -> Page:
        with self._step(now) as store:
            return page_of(store, query, store.now)

    async def do_count(self, queues: Sequence[str] | None, now: datetime | None) -> dict[str, Counts]:
        with self._step(now) as store:
            return {queue: _counts(store, queue) for queue in sorted(queues or store.queues())}

    async def do_queues(self, now: datetime | None) -> list[QueueInfo]:
        with self._step(now) as store:
            names = store.queues() | store.gates.configured()
            return [_queue_info(store, queue) for queue in sorted(names)]

    async def do_info(self) -> DriverInfo:
        return DriverInfo(
            driver="memory",
            store="this process",
            location=f"memory://{self._name}",
            durability="D0",
            schema="none",
            at=self.clock.now(),
            owed=self._store.families.count_owed(CALL_LIMIT),
        )

    # ------------------------------------------------------------------ presence

    async def do_report_worker(
        self, report: WorkerReport, samples: Sequence[Sample], ttl: timedelta, now: datetime | None
    ) -> None:
        with self._step(now) as store:
            store.registry.report(report, samples, ttl, store.now)

    async def do_forget_worker(self, worker_id: str, now: datetime | None) -> bool:
        with self._step(now) as store:
            return store.registry.forget(worker_id, store.now)

    async def do_workers(self, now: datetime | None) -> list[WorkerInfo]:
        with self._step(now) as store:
            return store.registry.workers(store.now)

    async def do_types(self, now: datetime | None) -> list[TypeInfo]:
        with self._step(now) as store:
            return store.registry.types()

    async def do_hold_role(self, role: str, holder: str, ttl: timedelta, now: datetime | None) -> RoleLease:
        with self._step(now) as store:
            return store.registry.hold(role, holder, ttl, store.now)

    async def do_release_role(self, role: str, holder: str, now: datetime | None) -> bool:
        with self._step(now) as store:
            return store.registry.release(role, holder, store.now)

    async def do_ring(self, queues: tuple[str, ...]) -> None:
        self._store.subscriptions.work(queues)

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Wakeups:
        return self._store.subscriptions.listen(queues, worker_id)

    # ------------------------------------------------------------------ schedules

    async def do_put_schedule(self, schedule: Schedule, now: datetime | None) -> StoredSchedule:
        with self._step(now) as store:
            return store.registry.put(schedule, store.now)

    async def do_advance_schedule(self, name: str, tick: datetime, fired: bool, now: datetime | None) -> bool:
        with self._step(now) as store:
            return store.registry.advance(name, tick, fired, store.now)

    async def do_delete_schedule(self, name: str, now: datetime | None) -> bool:
        with self._step(now) as store:
            return store.registry.delete(name)

    async def do_schedules(self, now: datetime | None) -> list[StoredSchedule]:
        with self._step(now) as store:
            return store.registry.schedules()

    # ------------------------------------------------------------------ the logbook

    async def do_write_log(
        self, entries: Sequence[LogEntry], instead_of: Sequence[LogKey], now: datetime | None
    ) -> None:
        with self._step(now) as store:
            store.logbook.write(entries, instead_of)

    async def do_read_log(
        self,
        book: str,
        since: datetime,
        until: datetime,
        limit: int,
        newest_first: bool,
        now: datetime | None,
    ) -> list[LogEntry]:
        with self._step(now) as store:
            return store.logbook.read(book, since, until, limit, newest_first, store.now)

    # ------------------------------------------------------------------ one step

    def _step(self, now: datetime | None) -> AbstractContextManager[Store]:
        return self._store.step(now, self.clock)


def _counts(store: Store, queue: str) -> Counts:
    store.promote((queue,))  # a due job reads ready
    counted = store.counts(queue)
    return Counts(**{state.value: counted[state] for state in JobState})


def _queue_info(store: Store, queue: str) -> QueueInfo:
    counts = _counts(store, queue)
    return QueueInfo(
        queue=queue,
        rules=store.gates.rules(queue),
        counts=counts,
        oldest_ready_at=store.oldest_ready_at(queue),
        throttled_until=store.gates.throttled_until(queue, store.now),
    )
