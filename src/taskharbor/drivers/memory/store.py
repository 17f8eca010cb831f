"""One memory store: its jobs inside a step (`JobsInStep`), and the verbs that search through them.

Every step runs under the store's lock: it is atomic, as every verb of the contract must be.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from heapq import merge
from itertools import islice, takewhile

from msgspec.structs import replace

from taskharbor.drivers import lifecycle
from taskharbor.drivers.memory.gates import Gates
from taskharbor.drivers.memory.logbook import Logbook
from taskharbor.drivers.memory.records import Idempotency, Ordered, Ready, Records, Timed
from taskharbor.drivers.memory.registry import Registry
from taskharbor.drivers.memory.wakeups import Subscriptions
from taskharbor.drivers.messages import Claim, Claimed, Enqueued, Reclaimed, given_up_in
from taskharbor.model.clock import EPOCH, Clock
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.queue import EVERY_QUEUE, QueueRules, retention_of
from taskharbor.model.speculation import may_take
from taskharbor.model.state import JobState
from taskharbor.model.transitions import claimed, new_record


class Store(Records):
    """One store in this process, shared by every handle on it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = EPOCH
        self.gates = Gates(self)
        self.idempotency = Idempotency()
        self.registry = Registry()
        self.logbook = Logbook()
        self.subscriptions = Subscriptions()
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

    # ------------------------------------------------------------------ in and out

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if self.gates.limit_enqueues:
            self.gates.admit(lifecycle.admit(self, jobs), self.now)
        return [lifecycle.enqueue_one(self, job) for job in jobs]

    def reserve(self, claim: Claim, token: str) -> Claimed:
        now = self.now
        swept = self.reclaim(claim.queues, 100)
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
        return Claimed(taken, given_up_in(swept))

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
            if (job.run_at is None or job.run_at <= now) and (
                job.speculates_on is None
                or may_take(job, self.jobs.get(job.speculates_on), claim.worker_id, now)
            ):
                yield job

    # ------------------------------------------------------------------ time

    def reclaim(self, queues: Sequence[str], limit: int) -> list[Reclaimed]:
        """The oldest expired leases of these queues, each ended once."""
        oldest = list(islice(merge(*(_expired(self.leases[queue], self.now) for queue in queues)), limit))
        answers = [lifecycle.reclaim_one(self, job_id) for _, _, job_id in oldest]
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
            while (
                keep is not None
                and pruned < limit
                and (first := finished.first())
                and first[0] + keep <= self.now
            ):
                self.drop(self.jobs[first[2]])
                pruned += 1
        return pruned


def _expired(leases: Ordered[Timed], now: datetime) -> Iterator[Timed]:
    return takewhile(lambda entry: entry[0] <= now, leases)
