"""One memory store: its jobs inside a step (`JobsInStep`), and the verbs that search through them.

Every step runs under the store's lock: it is atomic, as every verb of the contract must be.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from heapq import merge
from itertools import islice, takewhile

from msgspec.structs import replace

from taskharbor.drivers import families, family_verbs, lifecycle
from taskharbor.drivers.families import Owed, OwedKind
from taskharbor.drivers.family_enqueue import Arrival
from taskharbor.drivers.memory.families import FamilyIndex
from taskharbor.drivers.memory.gates import Gates
from taskharbor.drivers.memory.logbook import Logbook
from taskharbor.drivers.memory.records import Idempotency, Ordered, Ready, Records, Timed
from taskharbor.drivers.memory.registry import Registry
from taskharbor.drivers.memory.wakeups import Subscriptions
from taskharbor.drivers.messages import (
    Claim,
    Claimed,
    Enqueued,
    FamilyEnd,
    Reclaimed,
    Resolution,
    Resolved,
    Settled,
    given_up_in,
)
from taskharbor.errors import ConflictError, JobNotFound, LeaseLost
from taskharbor.model.clock import EPOCH, Clock
from taskharbor.model.job import JobRecord, Lease, NewJob
from taskharbor.model.queue import EVERY_QUEUE, QueueRules, retention_of
from taskharbor.model.settlement import Park, Settlement
from taskharbor.model.speculation import may_take
from taskharbor.model.state import JobState
from taskharbor.model.transitions import claimed, new_record


class Store(Records):
    """One store in this process, shared by every handle on it."""

    def __init__(self) -> None:
        super().__init__()
        self.families = FamilyIndex()
        self.now = EPOCH
        self.gates = Gates(self)
        self.idempotency = Idempotency()
        self.registry = Registry()
        self.logbook = Logbook()
        self.subscriptions = Subscriptions()
        self.has_families = False
        """Whether a job ever had bonds or notes, or was parked: without, the way of a plain job is all."""
        self.to_report: list[FamilyEnd] = []
        self._lock = threading.RLock()

    @contextmanager
    def step(self, now: datetime | None, clock: Clock) -> Iterator[Store]:
        """The store under its lock, at one instant; afterwards the wake-ups go out."""
        with self._lock:
            self.now = now or clock.now()  # under the lock, so that steps are in the order of their times
            yield self
            if woken := self.take_woken():
                self.subscriptions.work(woken)

    # ------------------------------------------------------------------ the rest of JobsInStep

    def rules(self, queue: str) -> QueueRules:
        return self.gates.rules(queue)

    def merge_away(self, job: JobRecord, target: JobRecord) -> None:
        super().merge_away(job, target)
        self.idempotency.move(job.id, target.id)

    def add_failure_job(self, job: NewJob) -> None:
        self.put(new_record(job, self.next_seq(), self.now))

    def notify_cancel(self, job: JobRecord) -> None:
        self.subscriptions.cancel(job.id, job.worker_id)

    def remembered(self, queue: str, key: bytes) -> str | None:
        return self.idempotency.job_of(queue, key, self.now)

    def remember(self, job: NewJob, record: JobRecord) -> None:
        self.idempotency.remember(job, record.id)

    def end_keys(self, job: JobRecord) -> None:
        self.idempotency.end(job.id, self.now)

    def revive_keys(self, job: JobRecord) -> None:
        self.idempotency.revive(job.id, self.now)

    # ------------------------------------------------------------------ the rest of FamiliesInStep

    def follow(self, job: JobRecord) -> None:
        self.families.ended.append(job.id)

    def take_ended(self) -> list[str]:
        ended, self.families.ended = self.families.ended, []
        return ended

    def amend(self, job: JobRecord) -> None:
        self.jobs[job.id] = job

    def add_edges(self, job: JobRecord, after: Sequence[str], *, is_park: bool = False) -> None:
        self.families.add_edges(job, after, is_park=is_park)

    def drop_park(self, job: JobRecord) -> None:
        self.families.drop_park(job)

    def parked_for(self, job: JobRecord) -> Sequence[str]:
        return self.families.parked_for(job)

    def dependents(self, job_id: str, cursor: int, limit: int) -> list[JobRecord]:
        return self._records(self.families.dependents(job_id, cursor, limit))

    def open_children(self, job_id: str, cursor: int, limit: int) -> list[JobRecord]:
        return self._records(self.families.open_children(job_id, cursor, limit))

    def open_events(self, job_id: str, limit: int) -> list[JobRecord]:
        return self._records(self.families.open_events(job_id, limit))

    def has_children(self, job_id: str) -> bool:
        return job_id in self.families.children

    def past_deadline(self, limit: int) -> list[JobRecord]:
        return self._records(self.families.past_deadline(limit, self.now))

    def owe(self, kind: OwedKind, job_id: str) -> None:
        self.families.owe(kind, job_id)

    def next_owed(self) -> Owed | None:
        return self.families.next_owed()

    def owe_rest(self, owed: Owed, cursor: int | None) -> None:
        self.families.owe_rest(owed, cursor)

    def _records(self, ids: Sequence[str]) -> list[JobRecord]:
        return [self.jobs[job_id] for job_id in ids]

    # ------------------------------------------------------------------ in and out

    def enqueue_family(self, jobs: Sequence[NewJob], by: Lease | None) -> list[Enqueued]:
        self.has_families = True
        arrival = Arrival(self, jobs, by)
        new = arrival.check()
        if self.gates.limit_enqueues:
            self.gates.admit(lifecycle.admit(self, new), self.now)
        return arrival.store()

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if self.gates.limit_enqueues:
            self.gates.admit(lifecycle.admit(self, jobs), self.now)
        return [lifecycle.enqueue_one(self, job) for job in jobs]

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
        """Each for itself; then what follows from them."""
        if not self.has_families and Park not in set(map(type, settlements)):
            return [lifecycle.settle_one(self, settlement) for settlement in settlements]
        self.has_families = True
        answers = [family_verbs.settle_one(self, settlement) for settlement in settlements]
        return families.concluded(self, answers)

    def check_resolutions(self, items: Sequence[Resolution]) -> None:
        """Raise InvalidArgument for an item that can never be stored, before the first is carried out."""
        for item in items:
            if item.new is not None and self.get(item.id) is None:
                with suppress(ConflictError):  # the answer of that item
                    Arrival(self, [item.new]).check()

    def resolve_one(self, item: Resolution) -> Resolved | JobNotFound | ConflictError:
        error = None
        if item.new is not None and self.get(item.id) is None:
            try:
                self.enqueue_family([item.new], None)
            except ConflictError as refused:
                error = refused
        return family_verbs.resolve_one(self, item, error)

    def reserve(self, claim: Claim, token: str) -> Claimed:
        now = self.now
        swept = self.reclaim(claim.queues, 100)
        if self.has_families:
            families.sweep(self)
        self.promote(claim.queues)
        taken: list[JobRecord] = []
        expires_at = now + claim.lease_for
        for queue in claim.queues:
            room = min(self.gates.room(queue, claim, now), claim.limit - len(taken))
            if room <= 0:
                continue
            picked = list(islice(self._candidates(queue, claim), room))
            for job in picked:
                record = claimed(job, token, claim.worker_id, expires_at, now)
                self.put(record)
                taken.append(record)
            self.gates.spend(queue, claim, len(picked), now)
        return Claimed(taken, given_up_in(swept), families.take_ends(self) if self.has_families else ())

    def _candidates(self, queue: str, claim: Claim) -> Iterator[JobRecord]:
        """The jobs of one queue that this worker may have, best first, lane by lane."""
        for lane in claim.lanes:
            by_type = self.ready.get((queue, lane))
            if by_type:
                wanted = [by_type[name] for name in claim.types or by_type if name in by_type]
                entries = iter(wanted[0]) if len(wanted) == 1 else merge(*wanted)
                yield from self._allowed(entries, claim)

    def _allowed(self, entries: Iterator[Ready], claim: Claim) -> Iterator[JobRecord]:
        now = self.now
        for *_, job_id in entries:
            job = self.jobs[job_id]
            # The first test: a clock that went back makes a promoted job wait again.
            if (
                (job.run_at is None or job.run_at <= now)
                and (
                    job.speculates_on is None
                    or may_take(job, self.jobs.get(job.speculates_on), claim.worker_id, now)
                )
                and (job.bonds is None or families.may_run(self, job))
            ):
                yield job

    # ------------------------------------------------------------------ time

    def reclaim(self, queues: Sequence[str], limit: int) -> list[Reclaimed]:
        """The oldest expired leases of these queues, each ended once."""
        oldest = list(islice(merge(*(_expired(self.leases[queue], self.now) for queue in queues)), limit))
        reclaim_one = family_verbs.reclaim_one if self.has_families else lifecycle.reclaim_one
        answers = [reclaim_one(self, job_id) for _, _, job_id in oldest]
        return [answer for answer in answers if answer is not None]

    def promote(self, queues: Sequence[str], limit: int | None = None) -> int:
        """Due jobs become ready. Nothing that can be read changes: a due job already reads ready."""
        moved = 0
        for queue in queues:
            later = self.later[queue]
            while (first := later.first()) is not None and first[0] <= self.now and moved != limit:
                self.put(replace(self.jobs[first[2]], state=JobState.READY))
                moved += 1
        return moved

    def prune(self, limit: int) -> int:
        """Forget finished jobs whose retention is over, oldest first within a queue and state."""
        pruned = 0
        for (queue, state), finished in list(self.finished.items()):
            keep = retention_of(self.rules(queue), self.rules(EVERY_QUEUE)).of(state)
            if keep is not None and pruned < limit:
                for _, _, job_id in list(islice(_expired(finished, self.now - keep), limit - pruned)):
                    if pruned < limit:  # a family may have taken more than one
                        pruned += self._prune(self.jobs[job_id], limit - pruned)
        return pruned

    def _prune(self, job: JobRecord, limit: int) -> int:
        """Forget a finished job, its children first. Returns how many went, at most `limit`."""
        if job.bonds is None and job.family is None:
            self.drop(job)
            return 1
        pruned = 0
        for _, child_id in list(islice(self.families.children.get(job.id, ()), limit)):
            pruned += self._prune(self.jobs[child_id], limit - pruned)
        is_needed = pruned >= limit or self.has_children(job.id) or family_verbs.is_named(self, job)
        if not is_needed:
            self.drop(job)
        return pruned + (not is_needed)


def _expired(entries: Ordered[Timed], now: datetime) -> Iterator[Timed]:
    return takewhile(lambda entry: entry[0] <= now, entries)
