"""What a worker tells the store about itself: who it is, what it runs, and how long jobs take."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta

from taskharbor.drivers.contract import Driver
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.worker.config import WorkerConfig
from taskharbor.worker.gpus import gpu_labels
from taskharbor.worker.leased_jobs import LeasedJobs
from taskharbor.worker.timing import Timing

MAX_SAMPLES = 200  # per report: an average that forgets by a fifth each time needs no more
MAX_RUNNING_SHOWN = 200

Durations = deque[tuple[str, float]]


class Presence:
    """Reports one worker every few seconds."""

    def __init__(
        self,
        config: WorkerConfig,
        worker_id: str,
        types: tuple[str, ...],
        driver: Driver,
        leased_jobs: LeasedJobs,
        durations: Durations,
        timing: Timing,
        started_at: datetime,
        is_quiet: Callable[[], bool],
    ) -> None:
        self._config = config
        self._worker_id = worker_id
        self._types = types
        self._driver = driver
        self._leased_jobs = leased_jobs
        self._durations = durations
        self._timing = timing
        self._started_at = started_at
        self._is_quiet = is_quiet
        self._every = config.report_every.total_seconds()
        self._last = float("-inf")

    def next_due(self) -> float:
        return self._last + self._every

    def is_due(self) -> bool:
        return self._timing.monotonic() >= self.next_due()

    async def report(self) -> None:
        self._last = self._timing.monotonic()
        call = self._driver.report_worker(
            self._said(), self._samples(), self._config.report_every * 4, now=self._timing.stated()
        )
        await self._timing.within(self._config.report_every.total_seconds() * 3, call)

    async def leave(self) -> None:
        await self._driver.forget_worker(self._worker_id, now=self._timing.stated())

    def _said(self) -> WorkerReport:
        config = self._config
        return WorkerReport(
            worker_id=self._worker_id,
            name=config.name or "",
            kind=config.kind,
            queues=config.queues,
            lanes=config.claimed_lanes,
            types=self._types,
            concurrency=config.concurrency,
            running=tuple(self._leased_jobs.ids()[:MAX_RUNNING_SHOWN]),
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            labels={**gpu_labels(config.gpus), **config.labels},
            is_quiet=self._is_quiet(),
        )

    def _samples(self) -> list[Sample]:
        samples: list[Sample] = []
        while self._durations and len(samples) < MAX_SAMPLES:
            type_name, seconds = self._durations.popleft()
            samples.append(Sample(type_name, timedelta(seconds=max(seconds, 0.0))))
        return samples
