"""SimulatedClock: time moves only when a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import check_instant
from taskharbor.model.duration import Duration, duration

START = datetime(2030, 1, 1, tzinfo=UTC)
_TURNS = 20  # how often the loop may turn before a woken task must have come to its next wait

_Sleeper = tuple[datetime, int, asyncio.AbstractEventLoop, "asyncio.Future[None]", str | None]

running_job: ContextVar[str | None] = ContextVar("running_job", default=None)
"""The job whose handler this is; so the clock knows a handler that sleeps from a worker that does."""


class SimulatedClock:
    """A clock for tests. It moves by `advance` only, and wakes the sleepers that are due.

    Given to a Harbor, a Client, a driver or a Worker, it decides everything: leases, delays,
    backoff, rate limits and schedules. It may be shared by several threads and event loops.
    """

    def __init__(self, start: datetime = START) -> None:
        check_instant(start, "start")
        self._start = self._now = start.astimezone(UTC)
        self._sleepers: list[_Sleeper] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """The instant that was reached."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return (self._now - self._start).total_seconds()

    async def sleep(self, seconds: float) -> None:
        """Return once somebody has moved the clock that far."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        with self._lock:
            due = self._now + timedelta(seconds=max(seconds, 0.0))
            heapq.heappush(self._sleepers, (due, next(self._numbers), loop, woken, running_job.get()))
        self._wake()
        await woken

    @property
    def next_wake_at(self) -> datetime | None:
        """When the first sleeper wants to wake; None without sleepers."""
        with self._lock:
            while self._sleepers and self._sleepers[0][3].done():
                heapq.heappop(self._sleepers)
            return self._sleepers[0][0] if self._sleepers else None

    def jobs_asleep(self) -> set[str]:
        """The jobs whose handlers wait for this clock."""
        with self._lock:
            return {job for _, _, _, woken, job in self._sleepers if job is not None and not woken.done()}

    def advance(self, span: Duration) -> datetime:
        """Move on at once, and wake everybody whose time has come; answers the new time."""
        step = duration(span, "advance")
        if step < timedelta(0):
            raise InvalidArgument("a simulated clock never goes back")
        return self.advance_to(self._now + step)

    def advance_to(self, at: datetime) -> datetime:
        """Move on to an instant; nothing happens when it lies behind."""
        with self._lock:
            self._now = max(self._now, at)
        self._wake()
        return self._now

    async def pass_time(self, span: Duration) -> datetime:
        """Move on from one waking to the next, and let everybody do in between what they woke for."""
        until = self._now + duration(span, "pass_time")
        await turn_loop()
        while (wake_at := self.next_wake_at) is not None and wake_at <= until:
            self.advance_to(wake_at)
            await turn_loop()
        return self.advance_to(until)

    def _wake(self) -> None:
        with self._lock:
            due = []
            while self._sleepers and self._sleepers[0][0] <= self._now:
                due.append(heapq.heappop(self._sleepers))
        for _, _, loop, woken, _ in due:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_set, woken)

    def __repr__(self) -> str:
        return f"<SimulatedClock {self._now.isoformat()}>"


async def turn_loop(turns: int = _TURNS) -> None:
    """Let the event loop run what is ready, a few rounds of it."""
    loop = asyncio.get_running_loop()
    for _ in range(turns):
        turned: asyncio.Future[None] = loop.create_future()
        loop.call_soon(_set, turned)
        await turned


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
