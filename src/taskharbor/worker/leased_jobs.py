"""The jobs this worker holds: each with its newest lease, and who may use that lease right now.

A lease is used by one call at a time. The heartbeat marks what it extends (`is_extending`), the
settler what it settles (`is_on_wire`); each leaves alone what the other has marked. The heartbeat
lives in another thread, so the marks are changed under one lock, once per batch.

    leased ──start──► running ──end──► settling ──answered──► gone
      └────────────────┴── lease refused, or not extended in time ──► lost
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
from taskharbor.worker.context import Cancellation

if TYPE_CHECKING:
    from taskharbor.worker.deadlines import Deadlines
    from taskharbor.worker.executors.contract import Executor
    from taskharbor.worker.gpus import Gpu


class LeasedJob(msgspec.Struct, eq=False):
    """One job under a lease of ours, from its claim to the answer of its settlement."""

    record: JobRecord
    extended: float  # when the call that last gave us time was sent
    trusted_until: float
    cancellation: Cancellation = msgspec.field(default_factory=Cancellation)
    renewed: Lease | None = None  # the newest lease, once there is a newer one than the claim's
    started: float | None = None
    ended: float = 0.0
    ends: float | None = None  # the time limit of the attempt
    told: float | None = None  # when the handler was told to stop
    progress: Progress | None = None
    is_extending: bool = False
    is_on_wire: bool = False
    is_lost: bool = False
    is_over: bool = False  # the attempt has its outcome; whatever the handler still does is ignored
    is_watched: bool = False
    ran_to_its_end: bool = False  # although it had been told to stop
    deadlines: Deadlines | None = None  # who keeps its time limit
    executor: Executor | None = None
    task: Any = None  # the slot's task while the handler runs in it
    work: Any = None  # what the executor needs to stop it
    outcome: Outcome | None = None
    settlement: Settlement | None = None
    gpu: Gpu | None = None  # the device that is this job's alone until it is settled
    acked: Settled | None = None  # the handler's own transaction completed the job
    tokens_sent: tuple[str, ...] = ()  # of settlements that may have been stored unanswered

    @property
    def lease(self) -> Lease:
        """The newest lease."""
        return self.renewed or self.record.lease

    def renew(self, lease: Lease, sent: float, trusted_until: float) -> None:
        self.renewed = lease
        self.extended = sent
        self.trusted_until = trusted_until

    def note_progress(self, progress: Progress) -> None:
        self.progress = progress


class LeasedJobs:
    """All jobs this worker holds, for the event loop and for the heartbeat's thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._by_id: dict[str, LeasedJob] = {}
        self.lost: dict[LeasedJob, None] = {}
        """Jobs whose lease is gone and whose handler has not ended yet."""
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

    def add(self, batch: list[LeasedJob]) -> None:
        self.count += len(batch)
        for leased in batch:
            self._by_id[leased.record.id] = leased

    def forget(self, leased: LeasedJob) -> None:
        """The lease is gone: nobody extends it any more. Its slot may still be busy."""
        self.lost[leased] = None
        self._drop(leased)

    def leave(self, leased: LeasedJob) -> None:
        """Its slot is free again."""
        self.count -= 1
        if leased.is_lost:
            self.lost.pop(leased, None)
        self._drop(leased)

    def _drop(self, leased: LeasedJob) -> None:
        if self._by_id.get(leased.record.id) is leased:  # the same job may have been claimed again
            del self._by_id[leased.record.id]

    # ------------------------------------------------------------------ one user per lease

    def mark_extending(self, wanted: Iterable[LeasedJob]) -> list[LeasedJob]:
        """Of these, the ones the heartbeat may extend now; sorted, so that two calls never lock crosswise."""
        with self.lock:
            chosen = [
                leased
                for leased in wanted
                if not (leased.is_on_wire or leased.is_extending or leased.is_lost)
            ]
            for leased in chosen:
                leased.is_extending = True
        return sorted(chosen, key=lambda leased: leased.record.id)

    def unmark_extending(self, batch: Iterable[LeasedJob]) -> None:
        with self.lock:
            for leased in batch:
                leased.is_extending = False

    def mark_on_wire(self, wanted: list[LeasedJob]) -> tuple[list[LeasedJob], list[LeasedJob]]:
        """Split into those whose settlement may be sent now and those that an extension is using."""
        with self.lock:
            sendable = [leased for leased in wanted if not leased.is_extending]
            for leased in sendable:
                leased.is_on_wire = True
            waiting = (
                [] if len(sendable) == len(wanted) else [leased for leased in wanted if leased.is_extending]
            )
        return sendable, waiting

    def unmark_on_wire(self, batch: Iterable[LeasedJob]) -> None:
        with self.lock:
            for leased in batch:
                leased.is_on_wire = False
