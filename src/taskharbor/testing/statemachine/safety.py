"""Safety: answers of a store checked against what must never happen, without a model.

A `SafetyChecker` reads every answer of one store in order and remembers what it needs:
leases, grants, versions, states. It raises AssertionError, with the number of the broken promise,
as soon as two answers cannot both be right:

    I2  no two valid leases of one job         I9   nothing better was left waiting
    I3  fences only rise                       I14  nothing starts before its run_at
    I4  starts is the number of grants         I20  every change of state is an edge of the graph
    I6  no two valid leases of one key         I7   max_running is never exceeded
    I8  no window sees more than its rate
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from taskharbor.drivers.messages import Claim, Enqueued, EnqueueResult, Extended
from taskharbor.model.job import JobRecord
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE, QueueRules
from taskharbor.model.state import MOVES, JobState

_NO_RULES = QueueRules()


class _Grant(NamedTuple):
    queue: str
    key: bytes | None
    expires_at: datetime
    original: str | None  # of a copy


class SafetyChecker:
    """The memory of one store's answers."""

    def __init__(self) -> None:
        self._rules: dict[str, QueueRules] = {}
        self._leases: dict[str, _Grant] = {}  # not seen to have ended
        self._grants: Counter[str] = Counter()
        self._fences: dict[str, int] = {}
        self._seen: dict[str, tuple[int, JobState]] = {}
        self._events: dict[tuple[str, str], list[datetime]] = defaultdict(list)

    # ------------------------------------------------------------------ what was answered

    def configured(self, queue: str, rules: QueueRules) -> None:
        before = self._rules.get(queue, _NO_RULES)
        self._rules[queue] = rules
        for what, was, rate in (
            ("enqueue", before.enqueue_rate, rules.enqueue_rate),
            ("execute", before.execute_rate, rules.execute_rate),
        ):
            if was is None or rate is None:  # counted only while a rate is set
                self._events.pop((what, queue), None)

    def enqueued(self, queues: Sequence[str], answers: Sequence[Enqueued], now: datetime) -> None:
        for queue, answer in zip(queues, answers, strict=True):
            if answer.result is not EnqueueResult.DUPLICATE:
                for level in (queue, EVERY_QUEUE):
                    self._happened("enqueue", level, self._rules.get(level, _NO_RULES).enqueue_rate, now)

    def granted(self, jobs: Sequence[JobRecord], claim: Claim, now: datetime) -> None:
        assert len(jobs) <= claim.limit, f"{len(jobs)} jobs for a claim of {claim.limit}"
        for job in jobs:
            self._grant(job, claim, now)
        for level in {job.queue for job in jobs} | {EVERY_QUEUE}:
            most = self._rules.get(level, _NO_RULES).max_running
            if jobs and most is not None:
                valid = sum(self._is_valid(lease, level, now) for lease in self._leases.values())
                assert valid <= most, f"I7: {valid} valid leases in {level!r}, {most} are allowed"

    def extended(self, answer: Extended) -> None:
        lease = self._leases[answer.lease.job_id]
        assert answer.lease.expires_at is not None
        self._leases[answer.lease.job_id] = lease._replace(expires_at=answer.lease.expires_at)

    def ended(self, job_id: str, *, is_ack: bool) -> None:
        """An accepted settlement ended the lease of this job and of its copies."""
        lease = self._leases.pop(job_id, None)
        assert lease is not None, f"I3: {job_id} was settled without a lease"
        for other_id in [name for name, other in self._leases.items() if other.original == job_id]:
            del self._leases[other_id]
        if lease.original is not None and is_ack:
            self._leases.pop(lease.original, None)

    def left_waiting(self, taken: Sequence[JobRecord], ready: Sequence[JobRecord]) -> None:
        """After a claim: its jobs, and those that could have been claimed instead and still wait."""
        for job in taken:
            better = [
                other.id for other in ready if _lane(other) == _lane(job) and _order(other) < _order(job)
            ]
            assert not better, f"I9: {job.id} was handed out while {better} waited with a better order"

    def saw(self, job_id: str, job: JobRecord | None) -> None:
        """A look at one id; the record of an alias is that of another id."""
        if job is None or job.id != job_id:
            self._forget(job_id)
            return
        assert job.starts == self._grants[job_id], (
            f"I4: {job_id} says {job.starts} starts of {self._grants[job_id]}"
        )
        assert job.fence >= self._fences.get(job_id, 0), f"I3: the fence of {job_id} fell to {job.fence}"
        if job.state is not JobState.RUNNING:
            self._leases.pop(job_id, None)
        version, state = self._seen.get(job_id, (job.version, job.state))
        assert job.version >= version, f"{job_id} went back from version {version} to {job.version}"
        steps = job.version - version
        assert job.state in _reachable(state, steps), (
            f"I20: {job_id} went {state} → {job.state} in {steps} steps"
        )
        self._seen[job_id] = (job.version, job.state)

    # ------------------------------------------------------------------ how it is judged

    def _grant(self, job: JobRecord, claim: Claim, now: datetime) -> None:
        before = self._leases.get(job.id)
        assert before is None or before.expires_at <= now, f"I2: {job.id} was already leased"
        assert job.run_at is None or job.run_at <= now, f"I14: {job.id} started at {now}, before {job.run_at}"
        assert job.fence > self._fences.get(job.id, 0), f"I3: {job.id} got the old fence {job.fence}"
        for other_id, other in self._leases.items():
            same_key = job.key is not None and (other.queue, other.key) == (job.queue, job.key)
            assert not same_key or other.expires_at <= now, f"I6: {job.id} shares its key with {other_id}"
        assert job.lease_expires_at is not None
        self._leases[job.id] = _Grant(job.queue, job.key, job.lease_expires_at, job.speculates_on)
        self._fences[job.id] = job.fence
        self._grants[job.id] += 1
        for level in (job.queue, EVERY_QUEUE):
            self._happened("execute", level, self._rules.get(level, _NO_RULES).execute_rate, now)
        self._happened("worker", claim.worker_id, claim.rate, now)

    def _happened(self, what: str, whose: str, rate: RateLimit | None, now: datetime) -> None:
        if rate is not None:
            events = self._events[what, whose]
            events.append(now)
            seen = sum(at > now - rate.per for at in events)
            assert seen <= rate.count, (
                f"I8: {seen} of {what} {whose!r} within {rate.per}, allowed {rate.count}"
            )

    def _is_valid(self, lease: _Grant, level: str, now: datetime) -> bool:
        """Counted by this level; not a copy that may have ended with its original in this very step."""
        original = lease if lease.original is None else self._leases.get(lease.original)
        is_sure = original is not None and original.expires_at > now
        return is_sure and lease.expires_at > now and level in (EVERY_QUEUE, lease.queue)

    def _forget(self, job_id: str) -> None:
        """Gone, or merged into another job: this id starts again from nothing."""
        self._seen.pop(job_id, None)
        self._fences.pop(job_id, None)
        self._leases.pop(job_id, None)
        self._grants.pop(job_id, None)


def _lane(job: JobRecord) -> tuple[str, str]:
    return job.queue, job.requires


def _order(job: JobRecord) -> tuple[int, datetime, int]:
    return -job.priority, job.eligible_at, job.seq


def _reachable(state: JobState, steps: int) -> set[JobState]:
    """The states a job may read after so many changes; the clock alone makes scheduled ready."""
    reached = _by_clock({state})
    for _ in range(min(steps, len(MOVES))):
        reached = _by_clock(reached.union(*(MOVES[before] for before in reached)))
    return reached


def _by_clock(states: set[JobState]) -> set[JobState]:
    return states | {JobState.READY} if JobState.SCHEDULED in states else states
