"""JobContext: what a handler can ask and do besides its own work."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from taskharbor.errors import ConfigurationError, InvalidArgument
from taskharbor.model.clock import Clock, SystemClock
from taskharbor.model.job import Job, Progress
from taskharbor.worker.cancellation import Cancellation
from taskharbor.worker.gpus import Gpu

_log = logging.getLogger("taskharbor.job")
_system_clock = SystemClock()


class JobContext:
    """One attempt, seen by its handler.

    `attempt` counts from 1. `fence` is a number that only ever grows for a job: store it with your
    own writes and refuse a lower one, and a stale attempt can overwrite nothing. `gpu` is the device
    that this job has to itself, on a worker with `gpus`.
    """

    gpu: Gpu | None = None
    _begin: Callable[[Any], Any] | None = None
    _leased: Any = None

    def __init__(
        self,
        job: Job,
        fence: int = 0,
        cancelled: Cancellation | None = None,
        clock: Clock = _system_clock,
        ends: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        worker: str = "",
    ) -> None:
        self.job = job
        self.fence = fence
        self.cancelled = Cancellation() if cancelled is None else cancelled
        self.clock = clock
        self._ends = ends
        self._on_progress = on_progress
        self.worker = worker

    @property
    def attempt(self) -> int:
        return self.job.attempts + 1

    @property
    def stalls(self) -> int:
        """How often a lease of this job ran out or its process died: above zero, part of it may be done."""
        return self.job.stalls

    @property
    def deadline(self) -> datetime | None:
        """When the time limit of this attempt is over; None without one."""
        if self._ends is None:
            return None
        return self.clock.now() + timedelta(seconds=self._ends - self.clock.monotonic())

    def progress(self, fraction: float, text: str = "") -> None:
        """Report progress from 0 to 1. Stored with the next heartbeat; costs nothing until then."""
        if not isinstance(fraction, int | float) or math.isnan(fraction):
            raise InvalidArgument(f"progress takes a fraction from 0 to 1, not {fraction!r}")
        if self._on_progress is not None:
            self._on_progress(Progress(min(max(float(fraction), 0.0), 1.0), str(text)[:500]))

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry `log_fields` for every log handler."""
        return logging.LoggerAdapter(_log, self.log_fields)

    @property
    def log_fields(self) -> dict[str, Any]:
        """The fields of log records about this attempt; nothing of its payload."""
        job = self.job
        return log_fields(job.id, job.type, job.queue, self.attempt, self.worker)

    def transaction(self) -> Any:
        """`async with ctx.transaction() as connection:` your writes and the end of this job, in one commit.

        The connection is the store's own (sqlite3 or asyncpg), with a transaction begun. When the block
        ends, the job is completed in it and both are committed, or neither: a lease that was lost
        meanwhile undoes your writes. The attempt is over then; what the handler returns is not kept.
        """
        if self._begin is None:
            raise ConfigurationError(
                "ctx.transaction() needs SQLite or Postgres and a handler in the worker's own process; "
                "guard your own writes with ctx.fence instead"
            )
        return self._begin(self._leased)


def log_fields(job_id: str, task: str, queue: str, attempt: int, worker: str) -> dict[str, Any]:
    """The fields of a log record about a job, under names that clash with no others."""
    return {
        "taskharbor_job_id": job_id,
        "taskharbor_task": task,
        "taskharbor_queue": queue,
        "taskharbor_attempt": attempt,
        "taskharbor_worker": worker,
    }
