"""The worker's reports to the store: who it is, what it runs, and how long jobs take."""

from __future__ import annotations

import os
import socket
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.drivers.contract import Driver
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.worker.gpus import gpu_labels

if TYPE_CHECKING:
    from taskharbor.worker.run import Run

MAX_SAMPLES = 200  # per report: an average that drops a fifth of its weight each time needs no more
MAX_RUNNING_SHOWN = 200

Durations = deque[tuple[str, float]]


class PresenceReporter:
    """Reports one worker every few seconds."""

    def __init__(self, run: Run, driver: Driver) -> None:
        self._run = run
        self._driver = driver
        self._timing = run.timing
        self._started_at = run.timing.clock.now()
        self._every = run.options.report_every
        self._last = float("-inf")

    def next_due(self) -> float:
        return self._last + self._every.total_seconds()

    def is_due(self) -> bool:
        return self._timing.monotonic() >= self.next_due()

    async def report(self) -> None:
        self._last = self._timing.monotonic()
        call = self._driver.report_worker(
            self._new_report(), self._samples(), self._every * 4, now=self._timing.stated()
        )
        await self._timing.within(self._every.total_seconds() * 3, call)

    async def leave(self) -> None:
        await self._driver.forget_worker(self._run.worker_id, now=self._timing.stated())

    def _new_report(self) -> WorkerReport:
        run, options = self._run, self._run.options
        return WorkerReport(
            worker_id=run.worker_id,
            name=options.name or "",
            kind=options.kind,
            queues=options.claimed_queues,
            lanes=options.claimed_lanes,
            types=run.types,
            concurrency=options.concurrency,
            running=tuple(run.leased_jobs.ids()[:MAX_RUNNING_SHOWN]),
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            labels={**gpu_labels(run.gpus), **(options.labels or {})},
            is_quiet=run.is_quiet,
        )

    def _samples(self) -> list[Sample]:
        durations, samples = self._run.durations, list[Sample]()
        while durations and len(samples) < MAX_SAMPLES:
            type_name, seconds = durations.popleft()
            samples.append(Sample(type_name, timedelta(seconds=max(seconds, 0.0))))
        return samples
