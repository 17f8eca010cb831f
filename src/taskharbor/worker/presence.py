"""The worker's reports to the store: who it is, what it runs, and how long jobs take."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.log_recorder import release_of
from taskharbor.errors import Forbidden, InvalidArgument
from taskharbor.model.presence import GpuUse, Machine, Sample, WorkerReport
from taskharbor.worker.gpus import gpu_labels
from taskharbor.worker.machine import gpus_now, machine_now

if TYPE_CHECKING:
    from taskharbor.worker.run import Run

_log = logging.getLogger("taskharbor.worker")

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
        self._is_refused = False  # this token may not write to the logbook
        self._failed_writes = 0
        self._store_s: float | None = None
        self._release = release_of(run.options.labels)

    def next_due(self) -> float:
        return self._last + self._every.total_seconds()

    def is_due(self) -> bool:
        return self._timing.monotonic() >= self.next_due()

    async def report(self) -> None:
        self._last = self._timing.monotonic()
        machine, gpus = await self._look_around()
        sent = self._timing.monotonic()
        call = self._driver.report_worker(
            self._new_report(machine, gpus), self._samples(), self._every * 4, now=self._timing.stated()
        )
        await self._timing.within(self._every.total_seconds() * 3, call)
        self._store_s = round(self._timing.monotonic() - sent, 6)
        await self._write_log()

    async def leave(self) -> None:
        await self._write_log()
        await self._driver.forget_worker(self._run.worker_id, now=self._timing.stated())

    async def _write_log(self) -> None:
        """Write what was counted. A failure harms nothing: the next write has the same numbers and more."""
        recorder = self._run.recorder
        entries = recorder.take() if recorder is not None and not self._is_refused else []
        if not entries or recorder is None:
            return
        try:
            call = self._driver.write_log(entries, now=self._timing.stated())
            await self._timing.within(self._every.total_seconds() * 3, call)
            self._failed_writes = 0
        except (Forbidden, InvalidArgument) as error:
            self._is_refused = True
            _log.info("worker %s writes no logbook: %s", self._run.worker_id, error)
        except Exception as error:  # noqa: BLE001 - no fault of a store ends the reports
            recorder.not_written(entries)
            self._failed_writes += 1
            self._run.announcer.trouble("write_log", error, self._failed_writes)

    async def _look_around(self) -> tuple[Machine | None, tuple[GpuUse, ...]]:
        """The machine and its GPUs. A driver that hangs holds up this report, never a lease."""
        if self._timing.is_virtual:  # a simulation is the same on every machine
            return None, ()
        jobs = {gpu.id: job.record.id for job in self._run.leased_jobs if (gpu := job.attempt.gpu)}
        if not self._run.gpus:
            return machine_now(self._store_s), ()
        gpus = await asyncio.to_thread(gpus_now, self._run.gpus, jobs)
        return machine_now(self._store_s), gpus

    def _new_report(self, machine: Machine | None, gpus: tuple[GpuUse, ...]) -> WorkerReport:
        run, options = self._run, self._run.options
        return WorkerReport(
            worker_id=run.worker_id,
            name=options.name or "",
            kind=options.kind,
            queues=options.claimed_queues,
            lanes=options.claimed_lanes,
            types=() if run.resolver is not None else run.types,
            unresolved=() if run.resolver is None else run.resolver.unresolved,
            concurrency=options.concurrency,
            running=self._running(),
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            labels={**gpu_labels(run.gpus), **(options.labels or {})},
            is_quiet=run.is_quiet,
            release=self._release,
            machine=machine,
            gpus=gpus,
        )

    def _running(self) -> tuple[str, ...]:
        """At most one job for each slot; those that wait for one come last."""
        started = [(leased.attempt.started is None, leased.record.id) for leased in self._run.leased_jobs]
        most = min(self._run.options.concurrency, MAX_RUNNING_SHOWN)
        return tuple(job_id for _, job_id in sorted(started)[:most])

    def _samples(self) -> list[Sample]:
        durations, samples = self._run.durations, list[Sample]()
        while durations and len(samples) < MAX_SAMPLES:
            type_name, seconds = durations.popleft()
            samples.append(Sample(type_name, timedelta(seconds=max(seconds, 0.0))))
        return samples
