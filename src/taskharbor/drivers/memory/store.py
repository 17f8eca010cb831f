"""The rooms of one memory store, and the steps that touch several records at once.

Every step runs under the store's lock: it is atomic, as every verb of the contract must be.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from heapq import merge
from itertools import islice, takewhile

from msgspec.structs import replace

from taskharbor.drivers.memory.gates import Gates
from taskharbor.drivers.memory.idempotency import Idempotency
from taskharbor.drivers.memory.listeners import Listeners
from taskharbor.drivers.memory.ordered import Ordered
from taskharbor.drivers.memory.presence import Presence
from taskharbor.drivers.memory.records import Ready, Records, Timed
from taskharbor.drivers.messages import (
    Claim,
    Claimed,
    Enqueued,
    EnqueueResult,
    Reclaimed,
    Settled,
    given_up_in,
    reclaimed,
)
from taskharbor.errors import LeaseLost
from taskharbor.model.job import FAILURE_TYPE, NO_TIME, JobRecord, NewJob
from taskharbor.model.settlement import Ack, Settlement
from taskharbor.model.speculation import may_take
from taskharbor.model.state import JobState
from taskharbor.model.transitions import (
    absorb,
    claimed,
    dropped,
    failure_job,
    held,
    merged,
    new_record,
    settled,
    stalled,
    unblocked,
    won,
)


class Store:
    """One store in this process, shared by every handle on it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.records = Records()
        self.gates = Gates(self.records)
        self.idempotency = Idempotency()
        self.presence = Presence()
        self.listeners = Listeners()

    # ------------------------------------------------------------------ in

    def known(self, job: NewJob, now: datetime) -> str | None:
        """The id that already answers for this job: its own, or the one of its idempotency key."""
        target = self.records.resolve(job.id)
        if target in self.records.jobs:
            return target
        if job.idempotency_key is not None:
            first = self.idempotency.job_of(job.queue, job.idempotency_key, now)
            return None if first is None else self.records.resolve(first)
        return None

    def arriving(self, jobs: Sequence[NewJob], now: datetime) -> Counter[str]:
        """How many of these jobs are new, per queue: duplicates spend no budget."""
        ids: set[str] = set()
        keys: set[tuple[str, bytes]] = set()
        new: Counter[str] = Counter()
        for job in jobs:
            key = None if job.idempotency_key is None else (job.queue, job.idempotency_key)
            if job.id not in ids and key not in keys and self.known(job, now) is None:
                new[job.queue] += 1
                ids.add(job.id)
                if key is not None:
                    keys.add(key)
        return new

    def enqueue(self, job: NewJob, now: datetime) -> Enqueued:
        if (known := self.known(job, now)) is not None:
            there = self.records.jobs.get(known)
            return Enqueued(known, EnqueueResult.DUPLICATE, now, there.version if there else 0)
        slot = None if job.key is None else self.records.slot_of(job.queue, job.key)
        if slot is not None and (there_id := slot.waiting or slot.blocked) is not None:
            return self._absorb(self.records.jobs[there_id], job, now)
        is_blocked = slot is not None and slot.running is not None
        record = new_record(job, self.records.next_seq(), now, blocked=is_blocked)
        self.records.put(record)
        self.idempotency.remember(job, record.id)
        return Enqueued(
            record.id, EnqueueResult.BLOCKED if is_blocked else EnqueueResult.CREATED, now, record.version
        )

    def _absorb(self, there: JobRecord, job: NewJob, now: datetime) -> Enqueued:
        record = absorb(there, job, now)
        self.records.put(record)
        self.records.alias(job.id, record.id)
        self.idempotency.remember(job, record.id)
        return Enqueued(record.id, EnqueueResult.UPDATED, now, record.version)

    # ------------------------------------------------------------------ out

    def promote(self, queues: Sequence[str], now: datetime, limit: int | None = None) -> int:
        """Due jobs become ready. Nothing that can be read changes: a due job already reads ready."""
        moved = 0
        for queue in queues:
            later = self.records.later[queue]
            while (first := later.first()) is not None and first[0] <= now and moved != limit:
                self.records.put(replace(self.records.jobs[first[2]], state=JobState.READY))
                moved += 1
        return moved

    def reserve(self, claim: Claim, token: str, now: datetime) -> Claimed:
        swept = self.reclaim(claim.queues, 100, now)
        self.promote(claim.queues, now)
        taken: list[JobRecord] = []
        expires_at = now + claim.lease_for
        for queue in claim.queues:
            room = min(self.gates.room(queue, claim, now), claim.limit - len(taken))
            if room <= 0:
                continue
            picked = list(islice(self._candidates(queue, claim, now), room))
            for job in picked:
                record = claimed(job, token, claim.worker_id, expires_at, now)
                self.records.put(record)
                taken.append(record)
            self.gates.spend(queue, claim, len(picked), now)
        return Claimed(taken, given_up_in(swept))

    def _candidates(self, queue: str, claim: Claim, now: datetime) -> Iterator[JobRecord]:
        """The jobs of one queue that this worker may have, best first, lane by lane."""
        for lane in claim.lanes:
            by_type = self.records.ready.get((queue, lane))
            if by_type:
                wanted = [by_type[name] for name in claim.types or by_type if name in by_type]
                entries = iter(wanted[0]) if len(wanted) == 1 else merge(*wanted)
                yield from self._allowed(entries, claim, now)

    def _allowed(self, entries: Iterator[Ready], claim: Claim, now: datetime) -> Iterator[JobRecord]:
        for *_, job_id in entries:
            job = self.records.jobs[job_id]
            # The first test: a clock that went back makes a promoted job wait again.
            if (job.run_at is None or job.run_at <= now) and (
                job.speculates_on is None
                or may_take(job, self.records.jobs.get(job.speculates_on), claim.worker_id, now)
            ):
                yield job

    # ------------------------------------------------------------------ ends

    def settle(self, settlement: Settlement, now: datetime) -> Settled | LeaseLost:
        lease = settlement.lease
        job = held(self.records.jobs.get(lease.job_id), lease, now)
        if isinstance(job, LeaseLost):
            return job
        after = settled(job, settlement, now)
        if (
            after.state is JobState.COMPLETED
            and job.speculates_on is not None
            and isinstance(settlement, Ack)
        ):
            self._win(job.speculates_on, settlement.result, now)
        after = self._leave(job, after, now)
        self.drop_copy_of(after, now)
        return Settled(after.id, after.state, now, after.version)

    def reclaim(self, queues: Sequence[str], limit: int, now: datetime) -> list[Reclaimed]:
        """The oldest expired leases of these queues, each ended once."""
        oldest = merge(*(_expired(self.records.leases[queue], now) for queue in queues))
        answers = []
        for _, _, job_id in list(islice(oldest, limit)):
            job = self.records.jobs.get(job_id)
            if job is None or job.state is not JobState.RUNNING:  # a copy that just ended with its original
                continue
            had_blocked = self.records.blocked_behind(job) is not None
            after = self._leave(job, stalled(job, "", now), now)
            if after.state.is_terminal:
                self.drop_copy_of(after, now)
            answers.append(reclaimed(after, now, had_blocked=had_blocked))
        return answers

    def _leave(self, before: JobRecord, after: JobRecord, now: datetime) -> JobRecord:
        """Store a job that left `running`, with everything that follows from it in the same step."""
        blocked = self.records.blocked_behind(before)
        if blocked is not None and not after.state.is_terminal:
            after = merged(after, blocked, now)
            self.records.merge_away(blocked, after.id)
            self.idempotency.move(blocked.id, after.id)
        self.records.put(after)
        if after.state.is_terminal:
            if blocked is not None:
                self.records.put(unblocked(blocked, now))
            self.end(after, now)
        return after

    def end(self, job: JobRecord, now: datetime) -> None:
        """What the end of a stored job sets off: its failure job, its idempotency window, its retention."""
        if job.state is JobState.FAILED and job.type != FAILURE_TYPE and job.speculates_on is None:
            fail_queue = self.gates.fail_queue(job.queue)
            if fail_queue is not None:
                self.records.put(new_record(failure_job(job, fail_queue, now), self.records.next_seq(), now))
        self.idempotency.ended(job.id, now)
        if self.gates.retention(job.queue).of(job.state) == NO_TIME:
            self.records.drop(job)

    def prune(self, limit: int, now: datetime) -> int:
        """Forget finished jobs whose retention is over, oldest first within a queue and state."""
        pruned = 0
        for (queue, state), finished in list(self.records.finished.items()):
            keep = self.gates.retention(queue).of(state)
            while (
                keep is not None and pruned < limit and (first := finished.first()) and first[0] + keep <= now
            ):
                self.records.drop(self.records.jobs[first[2]])
                pruned += 1
        return pruned

    # ------------------------------------------------------------------ copies

    def _win(self, original_id: str, result: bytes | None, now: datetime) -> None:
        original = self.records.jobs.get(original_id)
        if original is not None and not original.state.is_terminal:
            after = won(original, result, now)
            self.records.put(after)
            if original.state is JobState.RUNNING:
                self.listeners.cancel(original.id, original.claimed_by)
            self.records.copies.pop(original_id, None)
            self.end(after, now)

    def drop_copy_of(self, job: JobRecord, now: datetime) -> None:
        if job.id not in self.records.copies:
            return
        copy = self.records.live_copy_of(job.id)
        if copy is not None:
            self.records.put(dropped(copy, now))
            self.listeners.cancel(copy.id, copy.claimed_by)
        if job.state.is_terminal:
            del self.records.copies[job.id]


def _expired(leases: Ordered[Timed], now: datetime) -> Iterator[Timed]:
    return takewhile(lambda entry: entry[0] <= now, leases)
