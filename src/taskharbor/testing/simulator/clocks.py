"""The clocks of a simulated world: the store's, which decides, and the processes', which may be wrong."""

from __future__ import annotations

from datetime import datetime

from taskharbor.model.clock import instant, micros
from taskharbor.testing.clock import START
from taskharbor.testing.simulator.loop import SECOND, SimulatedLoop

_START_US = micros(START)


class ProcessClock:
    """What one machine believes: a `rate` of 1.1 is a tenth too fast, `offset_us` is how far it is off."""

    runs_by_itself = True
    """Nobody moves it: who waits for an answer must let its time pass."""

    def __init__(self, loop: SimulatedLoop, rate: float = 1.0, offset_us: int = 0) -> None:
        self._loop = loop
        self._rate = rate
        self.offset_us = offset_us

    def now(self) -> datetime:
        return instant(self.now_us())

    def now_us(self) -> int:
        return _START_US + round(self._loop.us * self._rate) + self.offset_us

    def monotonic(self) -> float:
        return self._loop.us * self._rate / SECOND

    async def sleep(self, seconds: float) -> None:
        woken = self._loop.create_future()
        timer = self._loop.call_later(max(seconds, 0.0) / self._rate, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()


class StoreClock(ProcessClock):
    """The deciding clock. It may be stepped."""

    def at_us(self, loop_us: int) -> int:
        """What it will read when the loop reads this."""
        return _START_US + loop_us + self.offset_us

    def loop_us(self, at_us: int) -> int:
        """When the loop will be there."""
        return at_us - _START_US - self.offset_us


def _wake(woken: object) -> None:
    if not woken.done():  # type: ignore[attr-defined]
        woken.set_result(None)  # type: ignore[attr-defined]
