"""What the store as a whole holds: measured by one of all the processes that show metrics.

    wait ──the role is free──► measure every few seconds ──role lost, or the store away──► wait

Each of them would measure the same, and a sum over all would multiply it. The role is one of their own
and not the scheduler's: the leading scheduler may well be a process that shows nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import QueueInfo
from taskharbor.errors import TaskHarborError
from taskharbor.model.entropy import Entropy
from taskharbor.model.presence import WorkerInfo
from taskharbor.model.schedule import StoredSchedule, ticks
from taskharbor.model.state import JobState
from taskharbor.observe import metric_names
from taskharbor.observe.metrics_sample import Labels

ROLE = "metrics"
EVERY_SECONDS = 5.0
TTL = timedelta(seconds=15)
_log = logging.getLogger("taskharbor.metrics")

Values = dict[str, dict[Labels, float]]


class StoreLook(NamedTuple):
    """The store at one moment."""

    at: datetime
    queues: Sequence[QueueInfo]
    workers: Sequence[WorkerInfo]
    schedules: Sequence[StoredSchedule]
    owed: int | None = None
    """See DriverInfo; None: the look did not ask."""


class StoreGauges:
    """Keeps the store-wide gauges fresh while this process has the role, and has none otherwise."""

    def __init__(
        self,
        driver: Driver,
        *,
        name: str = "metrics",
        entropy: Entropy | None = None,
        look: Callable[[], Awaitable[StoreLook]] | None = None,
    ) -> None:
        """`look` is what to measure, if this process looks at the store for other reasons as well."""
        self._driver = driver
        self._look = look or self._ask
        self._clock = driver.clock
        self._holder = f"{name}-{(entropy or Entropy()).bytes(4).hex()}"
        self._values: Values = {}
        self._measured = float("-inf")
        self._is_troubled = False

    def values(self) -> Values:
        """What was measured last, while it is fresh and the role still ours. From any thread."""
        is_fresh = self._clock.monotonic() - self._measured < TTL.total_seconds()
        return self._values if is_fresh else {}

    async def keep(self) -> None:
        """Open the store and measure while the role is ours, until cancelled; then give both up."""
        try:
            while True:
                await self.run_once()
                await self._clock.sleep(EVERY_SECONDS)
        finally:
            await self._step_down()

    async def run_once(self) -> None:
        """Take or keep the role and measure; an unreachable store is logged once."""
        asked = self._clock.monotonic()
        try:
            await self._driver.open()
            if (await self._driver.hold_role(ROLE, self._holder, TTL)).is_mine:
                self._values, self._measured = await self._measure(), asked
            else:
                self._measured = float("-inf")
            self._is_troubled = False
        except TaskHarborError as error:
            level = logging.DEBUG if self._is_troubled else logging.WARNING
            self._is_troubled = True
            _log.log(level, "cannot measure the store: %s", error)

    async def _measure(self) -> Values:
        look = await self._look()
        owed = (await self._driver.info()).owed if look.owed is None else look.owed
        return {
            **queue_values(look.queues, look.at),
            **worker_values(look.workers),
            **schedule_values(look.schedules, look.at),
            metric_names.CONSEQUENCES.name: {(): float(owed)},
        }

    async def _ask(self) -> StoreLook:
        info = await self._driver.info()
        queues, workers = await self._driver.queues(), await self._driver.workers()
        return StoreLook(info.at, queues, workers, await self._driver.schedules(), info.owed)

    async def _step_down(self) -> None:
        self._measured = float("-inf")
        try:
            if self._driver.is_open:
                await self._driver.release_role(ROLE, self._holder)
                await self._driver.close()
        except TaskHarborError as error:
            _log.debug("could not release the metrics role: %s; it will expire", error)


def queue_values(queues: Sequence[QueueInfo], now: datetime) -> Values:
    jobs: dict[Labels, float] = {}
    oldest: dict[Labels, float] = {}
    paused: dict[Labels, float] = {}
    limits: dict[Labels, float] = {}
    for info in queues:
        queue = info.queue
        paused[queue,] = float(bool(info.rules.paused))
        if info.rules.max_running is not None:
            limits[queue,] = float(info.rules.max_running)
        if queue == metric_names.EVERY_QUEUE_LABEL:
            continue
        for state in JobState:
            jobs[queue, state.value] = float(getattr(info.counts, state.value))
        since = info.oldest_ready_at
        oldest[queue,] = 0.0 if since is None else max((now - since).total_seconds(), 0.0)
    return {
        metric_names.JOBS.name: jobs,
        metric_names.QUEUE_OLDEST.name: oldest,
        metric_names.QUEUE_PAUSED.name: paused,
        metric_names.QUEUE_LIMIT.name: limits,
    }


def worker_values(workers: Sequence[WorkerInfo]) -> Values:
    kinds: dict[Labels, float] = {}
    for worker in workers:
        kinds[worker.report.kind,] = kinds.get((worker.report.kind,), 0.0) + 1
    return {metric_names.WORKERS.name: kinds}


def schedule_values(schedules: Sequence[StoredSchedule], now: datetime) -> Values:
    """How late the first unhandled tick is; a paused schedule is never late."""
    lags: dict[Labels, float] = {}
    for entry in schedules:
        due = None if entry.paused else next(ticks(entry.schedule, entry.last_tick_at), None)
        late = 0.0 if due is None else (now - due).total_seconds()
        lags[entry.schedule.name,] = max(late, 0.0)
    return {metric_names.SCHEDULE_LAG.name: lags}
