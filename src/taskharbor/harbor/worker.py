"""HarborWorker: a worker that brings its harbor's schedules into the store before it starts."""

from __future__ import annotations

from typing import Any

from taskharbor.drivers.contract import Driver
from taskharbor.harbor.schedules import Schedules
from taskharbor.worker.worker import Worker


class HarborWorker(Worker):
    """A worker with the tasks of a harbor."""

    def __init__(self, driver: Driver, schedules: Schedules, **options: Any) -> None:
        super().__init__(driver, **options)
        self._schedules = schedules

    async def arun(self, *, until_idle: bool = False) -> None:
        await self._schedules.astore()
        try:
            await super().arun(until_idle=until_idle)
        finally:
            await self.driver.close()

    def run(self, *, until_idle: bool = False) -> str:
        if self._schedules.declared:
            self._schedules.store()
        return super().run(until_idle=until_idle)
