"""The jobs this worker has claimed and not settled yet.

    claimed ──start──► running ──end──► settling ──stored──► gone
       └────────────────┴── lease refused, or not extended in time ──► lost

A `LeasedJob` has three parts. Any module may read them; each field is written only by the module beside it.

    part        field                            written by
    lease       newest, extended, trusted_until  lease_keeper.py
                progress                         the handler; cleared by lease_keeper.py once stored
                is_extending                     LeasedJobs, for lease_keeper.py
                is_settling                      LeasedJobs, for settling.py and transaction.py
                is_lost                          LeasedJobs, for cancellation.py
    attempt     started, ended, task, is_over    slots.py
                ran_to_its_end                   attempt.py
                work                             the executor of the handler
                ends, has_deadline               deadlines.py
                cancellation, stop_requested     cancellation.py
                gpu                              gpus.py
    settlement  outcome, value                   settling.py
                acked                            transaction.py
                tokens_sent                      settling.py, transaction.py
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from taskharbor.drivers.messages import Settled
from taskharbor.model.job import JobRecord, Lease, Progress
from taskharbor.model.outcome import Outcome
from taskharbor.model.settlement import Settlement
from taskharbor.worker.cancellation import Cancellation

if TYPE_CHECKING:
    from taskharbor.worker.gpus import Gpu


class LeaseState(msgspec.Struct, eq=False, gc=False):
    """The lease: how long it can be trusted, and which call uses it right now.

    One call at a time. The lease keeper marks what it extends, the settler what it settles, and each skips
    what the other has marked. The lease keeper runs in another thread, so `LeasedJobs` changes the marks
    under one lock.
    """

    extended: float  # when the call was sent that last extended it
    trusted_until: float
    newest: Lease | None = None  # None until the first extension: the record has the lease of the claim
    progress: Progress | None = None  # for the next extension to store
    is_extending: bool = False
    is_settling: bool = False
    is_lost: bool = False

    def renew(self, lease: Lease, sent: float, trusted_until: float) -> None:
        self.newest = lease
        self.extended = sent
        self.trusted_until = trusted_until


class AttemptState(msgspec.Struct, eq=False):
    """The attempt: when it started, when it must end, and how to stop it."""

    cancellation: Cancellation = msgspec.field(default_factory=Cancellation)
    started: float | None = None
    ended: float = 0.0
    ends: float | None = None  # the time limit
    stop_requested: float | None = None  # when the handler was asked to stop
    is_over: bool = False  # it has an outcome; what the handler still does is ignored
    has_deadline: bool = False
    ran_to_its_end: bool = False  # although it was asked to stop
    task: Any = None  # the slot's task while the handler runs in it
    work: Any = None  # what the executor needs to stop it
    gpu: Gpu | None = None  # reserved for this job until it is settled


class SettlementState(msgspec.Struct, eq=False, gc=False):
    """The end: the outcome of the attempt, and what is sent to the store about it."""

    outcome: Outcome | None = None
    value: Settlement | None = None
    acked: Settled | None = None  # the handler's own transaction completed the job
    tokens_sent: tuple[str, ...] = ()  # of settlements that may have been stored without an answer


class LeasedJob(msgspec.Struct, eq=False):
    """One claimed job, until the store has answered its settlement. The header says who writes what."""

    record: JobRecord
    lease: LeaseState
    attempt: AttemptState
    end: SettlementState

    @property
    def newest_lease(self) -> Lease:
        return self.lease.newest or self.record.lease

    def note_progress(self, progress: Progress) -> None:
        self.lease.progress = progress


AHEAD_SECONDS = 0.02  # how long a job may wait in this process while it could run in another
MOST_AHEAD_SECONDS = 0.2  # the same with a store that is far away
MOST_AHEAD = 400  # jobs: with more of them in one call each becomes hardly cheaper


class HeldLimit:
    """How many jobs a worker may hold: those that run, and those that wait for a slot in its process.

    A call to the store costs much more than a short job, so it should carry many of them. But a job that
    waits here cannot run elsewhere. Without `prefetch` a worker holds as many jobs as it has ended in the
    last 20 ms, or in the time of four calls to a slower store, and at least one for each slot. It claims
    ahead only while there are more jobs than it asks for, and none of them was held by a worker that died:
    then one of them may be the cause. Callers pass the time in.
    """

    def __init__(self, slots: int, prefetch: int | None) -> None:
        self._least = slots + (prefetch or 0)
        self.is_automatic = prefetch is None
        self._since: float | None = None
        self._ended = 0
        self._call_seconds = 0.0
        self.now = self._least

    def ended(self, count: int, call_seconds: float, now: float) -> None:
        """So many jobs were settled by a call that took so long."""
        if not self.is_automatic:
            return
        self._call_seconds = min(call_seconds, self._call_seconds * 1.1) or call_seconds
        if self._since is None:  # when these began is not known
            self._since, self._ended = now, 0
            return
        self._ended += count
        seconds = now - self._since
        if seconds >= AHEAD_SECONDS or self._ended >= MOST_AHEAD:
            horizon = min(max(AHEAD_SECONDS, 4 * self._call_seconds), MOST_AHEAD_SECONDS)
            wanted = int(self._ended * horizon / seconds) if seconds > 0 else 0
            self.now = max(self._least, min(wanted, MOST_AHEAD))
            self._since, self._ended = now, 0

    def reset(self) -> None:
        """Hold no more than what can run; there is no more, or what waits has waited for too long."""
        self.now = self._least
        self._since = None


class LeasedJobs:
    """All claimed jobs of one run, for its event loop and for the thread of the heartbeat."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._by_id: dict[str, LeasedJob] = {}
        self._lost: dict[LeasedJob, None] = {}
        self.count = 0
        """Jobs that take up a slot: claimed, and their settlement not answered yet."""

    def __iter__(self) -> Iterator[LeasedJob]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, job_id: str) -> LeasedJob | None:
        return self._by_id.get(job_id)

    def ids(self) -> list[str]:
        return list(self._by_id)

    def running(self) -> list[LeasedJob]:
        """Jobs whose handlers have not ended, with or without their lease."""
        return [leased for leased in (*self, *self._lost) if not leased.attempt.is_over]

    def add(self, batch: list[LeasedJob]) -> None:
        self.count += len(batch)
        for leased in batch:
            self._by_id[leased.record.id] = leased

    def lose(self, leased: LeasedJob) -> None:
        """The lease is gone and is not extended any more. Its handler may still occupy the slot."""
        leased.lease.is_lost = True
        self._lost[leased] = None
        self._drop(leased)

    def remove(self, leased: LeasedJob) -> None:
        """Its slot is free again."""
        self.count -= 1
        if leased.lease.is_lost:
            self._lost.pop(leased, None)
        self._drop(leased)

    def _drop(self, leased: LeasedJob) -> None:
        if self._by_id.get(leased.record.id) is leased:  # the same job may have been claimed again
            del self._by_id[leased.record.id]

    # ------------------------------------------------------------------ one user per lease

    def mark_extending(self, wanted: Iterable[LeasedJob]) -> list[LeasedJob]:
        """Of these, the ones to extend now; sorted, so that two calls never lock crosswise."""
        with self.lock:
            chosen = []
            for leased in wanted:
                lease = leased.lease
                if not (lease.is_settling or lease.is_extending or lease.is_lost):
                    lease.is_extending = True
                    chosen.append(leased)
        return sorted(chosen, key=lambda leased: leased.record.id)

    def unmark_extending(self, batch: Iterable[LeasedJob]) -> None:
        with self.lock:
            for leased in batch:
                leased.lease.is_extending = False

    def mark_settling(self, wanted: list[LeasedJob]) -> tuple[list[LeasedJob], list[LeasedJob]]:
        """Split into those whose settlement can be sent now and those that are being extended."""
        with self.lock:
            sendable = [leased for leased in wanted if not leased.lease.is_extending]
            for leased in sendable:
                leased.lease.is_settling = True
            if len(sendable) == len(wanted):
                return sendable, []
            return sendable, [leased for leased in wanted if not leased.lease.is_settling]

    def unmark_settling(self, batch: Iterable[LeasedJob]) -> None:
        with self.lock:
            for leased in batch:
                leased.lease.is_settling = False
