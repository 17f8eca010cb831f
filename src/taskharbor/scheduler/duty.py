"""A duty: something to do periodically, and the clock of the duties."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from taskharbor.drivers.contract import Driver
from taskharbor.model.clock import Clock, SystemClock


class Duty(Protocol):
    """One kind of housekeeping. Safe to run twice, anywhere, at any time; only wasteful."""

    @property
    def name(self) -> str: ...

    @property
    def every_seconds(self) -> float: ...

    async def run_once(self) -> int:
        """Do what is due; returns how many things were done."""
        ...


class Now:
    """The clock of the duties: the store's own, unless a simulated clock was given."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._is_virtual = not isinstance(clock, SystemClock)

    @property
    def given(self) -> datetime | None:
        """What to pass to a verb as `now`."""
        return self._clock.now() if self._is_virtual else None

    async def read(self) -> datetime:
        """The time of the clock that counts."""
        return self._clock.now() if self._is_virtual else (await self._driver.info()).at
