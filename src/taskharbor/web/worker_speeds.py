"""WorkerSpeeds: which workers are slow, from what each wrote into the logbook in the last minutes.

Minutes that are merged do not say who wrote them, so only the last few count. They are read at most every ten
seconds, and only when somebody looks at the workers.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.log_pages import each_entry
from taskharbor.model.clock import Clock
from taskharbor.model.log_cells import Numbers, unpacked
from taskharbor.model.logbook import NUMBERS
from taskharbor.model.worker_speed import times_slower

_KEPT_SECONDS = 10.0
_BACK = timedelta(minutes=5)
_AHEAD = timedelta(minutes=1)
"""Clocks of workers may be ahead of the store's."""


class WorkerSpeeds:
    """The cells of single workers, read once for all who ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cells: list[tuple[str, list[Numbers]]] = []
        self._read_at = float("-inf")

    async def times_slower(self, driver: Driver, may_use: Callable[[str], bool]) -> dict[str, float]:
        """Per worker: how many times as long its jobs take as on others, in queues of the caller."""
        if not driver.capabilities.logbook:
            return {}
        if self._clock.monotonic() >= self._read_at + _KEPT_SECONDS:
            self._read_at = self._clock.monotonic()
            self._cells = await self._read(driver)
        return times_slower(
            (worker, [row for row in rows if may_use(row.queue)]) for worker, rows in self._cells
        )

    async def of_all(self, driver: Driver) -> dict[str, float]:
        """The same over every queue."""
        return await self.times_slower(driver, lambda _queue: True)

    async def _read(self, driver: Driver) -> list[tuple[str, list[Numbers]]]:
        now = self._clock.now()
        entries = each_entry(driver, NUMBERS, now - _BACK, now + _AHEAD)
        return [(entry.by, unpacked(entry.data, Numbers)) async for entry in entries if entry.by]
