"""The worker's clock, and the few ways of waiting that a worker needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

from taskharbor.errors import DriverUnavailable
from taskharbor.model.clock import Clock, SystemClock

T = TypeVar("T")


class Timing:
    """A clock, and what follows from which clock it is.

    The system clock decides nothing: verbs get `now=None` and the store's own clock counts. Any other clock
    is virtual time: every verb gets its `now`, and everything happens in one event loop, without threads and
    signals, so that a simulation can be replayed.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.is_virtual = not isinstance(self.clock, SystemClock)
        self.is_moved_by_hand = self.is_virtual and not getattr(self.clock, "runs_by_itself", False)
        self.monotonic = self.clock.monotonic

    def stated(self) -> datetime | None:
        """What to pass as `now` to a verb."""
        return self.clock.now() if self.is_virtual else None

    async def within(self, seconds: float, call: Coroutine[Any, Any, T]) -> T:
        """What `call` returns, or TimeoutError when it took longer than so many seconds of this clock."""
        working = asyncio.ensure_future(call)
        sleeping = asyncio.ensure_future(self.clock.sleep(max(seconds, 0.0)))
        try:
            await asyncio.wait((working, sleeping), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise TimeoutError(f"no answer within {seconds:.3g} s")
            return working.result()
        finally:
            await dropped(working, sleeping)

    async def answered(self, seconds: float, call: Coroutine[Any, Any, T]) -> T:
        """What the store answers to `call`; no call may hang for ever on a connection that died silently.

        In virtual time there are no connections, and nothing is waited for but what the clock knows.

        Raises:
            DriverUnavailable: no answer for so long; the call may have been carried out.
        """
        if self.is_virtual:
            return await call
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await call
        except TimeoutError:
            if not limit.expired():
                raise
            what = f"no answer within {seconds:.3g} s; the call may have been carried out"
            raise DriverUnavailable(what, done=None) from None

    async def until(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for the event, but not longer; whether it was set."""
        with suppress(TimeoutError):
            await self.within(seconds, event.wait())
        return event.is_set()


class Alarm:
    """Rings once at the earliest of the instants it was set to."""

    def __init__(self, timing: Timing, ring: Callable[[], None]) -> None:
        self._timing = timing
        self._ring = ring
        self._at = float("inf")
        self._sleeper: asyncio.Task[None] | None = None

    def set(self, at: float) -> None:
        """Ring at this reading of the monotonic clock, or earlier if it was set to an earlier one."""
        if at < self._at:
            self.clear()
            self._at = at
            self._sleeper = asyncio.get_running_loop().create_task(self._wait(at))

    def clear(self) -> None:
        if self._sleeper is not None:
            self._sleeper.cancel()
        self._sleeper = None
        self._at = float("inf")

    async def _wait(self, at: float) -> None:
        await self._timing.clock.sleep(max(at - self._timing.monotonic(), 0.0))
        self._sleeper = None
        self._at = float("inf")
        self._ring()


async def dropped(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what is still under way and wait for its end, so that nothing is left behind."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, Exception):
            await task
