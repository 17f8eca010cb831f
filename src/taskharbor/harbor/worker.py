"""HarborWorker: a worker that brings its harbor's schedules, and a scheduler that runs beside it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from taskharbor.drivers.contract import Driver
from taskharbor.errors import ConfigurationError, Forbidden
from taskharbor.harbor.schedules import Schedules
from taskharbor.model.duration import Duration, duration
from taskharbor.model.job import NO_TIME
from taskharbor.scheduler.scheduler import SWEEP_EVERY, Scheduler
from taskharbor.worker.worker import Worker

_FAREWELL_SECONDS = 2.0
_log = logging.getLogger("taskharbor.scheduler")


class HarborWorker(Worker):
    """A worker with the tasks of a harbor.

    Beside it runs a scheduler, on the same handle, which costs no connection. Schedules fire, old jobs are
    forgotten and stragglers get their copy without another process. Any number of them may run; one leads. A
    run until idle does without, and so does one in simulated time.
    """

    def __init__(
        self,
        driver: Driver,
        schedules: Schedules,
        *,
        scheduler: bool = True,
        sweep_every: Duration = SWEEP_EVERY,
        **options: Any,
    ) -> None:
        super().__init__(driver, **options)
        self._sweep_every = duration(sweep_every, "sweep_every")
        if self._sweep_every <= NO_TIME:
            raise ConfigurationError(f"sweep_every={self._sweep_every} must be positive")
        self._schedules = schedules
        self._has_scheduler = scheduler and not self._timing.is_virtual

    def _check_handlers(self) -> None:
        super()._check_handlers()
        self._schedules._check()

    async def _store_schedules(self) -> None:
        try:
            await self._schedules._astore_on(self.driver)
        except Forbidden as error:
            _warn_unstored(error)

    async def _run_once(self, until_idle: bool) -> str:
        await self._store_schedules()
        if until_idle or self._timing.is_virtual:
            return await super()._run_once(until_idle)
        async with self._beside():
            return await super()._run_once(until_idle)

    @asynccontextmanager
    async def _beside(self) -> AsyncIterator[None]:
        """Ends with the worker, and never keeps it waiting for a store that does not answer."""
        running = [asyncio.ensure_future(self._schedules.akeep(self.driver, self._timing.clock))]
        if self._has_scheduler:
            running.append(asyncio.ensure_future(self._keep_time()))
        try:
            yield
        finally:
            for one in running:
                one.cancel()
            await asyncio.wait(running, timeout=_FAREWELL_SECONDS)

    async def _keep_time(self) -> None:
        try:
            name, every = self.options.name or "worker", self._sweep_every
            await Scheduler(self.driver, name=name, sweep_every=every, events=self.events).arun()
        except Exception:  # noqa: BLE001 - logged as a whole
            # The jobs go on: another worker's scheduler, or the next start, takes this over.
            _log.exception("the scheduler of worker %s stopped unexpectedly", self.id)


def _warn_unstored(error: Forbidden) -> None:
    """A worker whose token is for some queues need not be the one that brings the schedules of all."""
    _log.warning("no permission to store schedules; another program must store them: %s", error)
