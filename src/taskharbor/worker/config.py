"""What can be set on a worker, checked before any work is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from taskharbor.errors import ConfigurationError, InvalidArgument
from taskharbor.model.checks import check_labels, check_name, check_text, check_ttl
from taskharbor.model.job import DEFAULT_QUEUE, NO_TIME
from taskharbor.model.limits import RateLimit, check_rate
from taskharbor.model.retry import RetryPolicy
from taskharbor.worker.gpus import LANES_WITHOUT, Gpu

UnknownTypes = Literal["fail", "skip"]
MAX_HELD = 10_000  # one claim can carry no more


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """All settings of one worker.

    `heartbeat` is how often leases are extended: a third of the lease by default, and at most half of it.
    `lanes` replaces the lanes that follow from `kind`. `prefetch` jobs may wait in this process, leased and
    heartbeated, beyond those that run. `patience` is how long a handler that was asked to stop may take.
    `max_jobs` and `max_memory` (bytes) end the worker, after its running jobs, so that a supervisor starts a
    fresh one; 0 is no limit. `gpus` are the devices, one per job of a lane other than cpu and any.
    """

    queues: tuple[str, ...] = (DEFAULT_QUEUE,)
    concurrency: int = 10
    lease: timedelta = timedelta(seconds=30)
    heartbeat: timedelta | None = None
    kind: str = "any"
    lanes: tuple[str, ...] | None = None
    name: str | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    grace: timedelta = timedelta(seconds=30)
    poll: timedelta | None = None
    max_poll: timedelta | None = None
    unknown_types: UnknownTypes = "skip"
    strict: bool = False
    rate: RateLimit | None = None
    prefetch: int = 0
    patience: timedelta = timedelta(seconds=1)
    report_every: timedelta = timedelta(seconds=5)
    max_jobs: int = 0
    max_memory: int = 0
    process_memory: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()

    def __post_init__(self) -> None:
        self._check_names()
        self._check_times()
        if self.concurrency < 1 or self.concurrency + self.prefetch > MAX_HELD:
            raise ConfigurationError(
                f"concurrency={self.concurrency} must be at least 1, and with prefetch at most {MAX_HELD}"
            )
        if self.unknown_types not in ("fail", "skip"):
            raise ConfigurationError(f"unknown_types={self.unknown_types!r} must be 'fail' or 'skip'")
        for what in ("prefetch", "max_jobs", "max_memory", "process_memory"):
            if getattr(self, what) < 0:
                raise ConfigurationError(f"{what}={getattr(self, what)} must not be negative")

        if self.gpus:
            self._check_gpus()

    def _check_gpus(self) -> None:
        if not set(self.claimed_lanes) - set(LANES_WITHOUT):
            raise ConfigurationError("gpus are for jobs that require them: add kind='gpu' (--kind gpu)")
        if self.concurrency > len(self.gpus) or self.prefetch:
            raise ConfigurationError("a job needs a device to start: no more slots than gpus, no prefetch")

    def _check_names(self) -> None:
        if not self.queues or len(set(self.queues)) != len(self.queues):
            raise ConfigurationError(f"queues={self.queues} must name at least one queue, none of them twice")
        try:
            for queue in self.queues:
                check_name(queue, "queue")
            for lane in (self.kind, *(self.lanes or ())):
                check_name(lane, "lane")
            check_text(self.name or "", "name", most=200)  # the id of each start adds to it
            check_labels(self.labels)
            check_ttl(self.report_every * 4)
            if self.rate is not None:
                check_rate(self.rate, "rate")
        except InvalidArgument as error:
            raise ConfigurationError(str(error)) from None

    def _check_times(self) -> None:
        for what in ("lease", "grace", "patience", "report_every"):
            least = NO_TIME if what == "grace" else timedelta(microseconds=1)
            if getattr(self, what) < least:
                raise ConfigurationError(f"{what}={getattr(self, what)} is too short")
        if self.poll is not None and self.poll <= NO_TIME:
            raise ConfigurationError(f"poll={self.poll} must be above zero")
        if self.max_poll is not None and self.max_poll <= (self.poll or NO_TIME):
            raise ConfigurationError(f"max_poll={self.max_poll} must be above poll, and above zero")
        if self.heartbeat is not None and not NO_TIME < self.heartbeat <= self.lease / 2:
            raise ConfigurationError(
                f"heartbeat={self.heartbeat} leaves no second chance within lease={self.lease}; "
                "keep it above zero and at most half of the lease"
            )

    @property
    def renew_every(self) -> timedelta:
        # A third, not a half: one renewal may get lost and the next may be slow before the job is lost.
        return self.heartbeat or self.lease / 3

    @property
    def claimed_lanes(self) -> tuple[str, ...]:
        """The lanes to claim, best first: the worker's own kind before `any`."""
        if self.lanes is not None:
            return self.lanes
        return ("any",) if self.kind == "any" else (self.kind, "any")

    @property
    def answer_seconds(self) -> float:
        """How long to wait for the store to answer a claim or a settlement.

        Only a connection that died without a word takes so long. A store that is merely slow answers
        late, and what comes too late for its lease is refused or released as always.
        """
        return min(max(self.trust_seconds * 3, 6.0), 12.0)

    @property
    def trust_seconds(self) -> float:
        """How long a lease is trusted after the call that gave it was sent: early, never late."""
        lease = self.lease.total_seconds()
        return lease - min(max(lease * 0.1, 0.25), lease / 2)
