"""Time comes in through this door, and only through it.

`Clock` is what every part of TaskHarbor is given; `SystemClock` is the one that production uses.
The store's clock decides about leases and schedules (verbs take `now=None`); this clock only
measures, sleeps, and replaces the store's clock where the store is this machine.
"""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(at: datetime) -> int:
    """The instant as integer microseconds since 1970: exact, never through a float."""
    since = at - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def instant(us: int) -> datetime:
    """The aware UTC datetime of integer microseconds since 1970."""
    return EPOCH + timedelta(microseconds=us)


def span_micros(span: timedelta) -> int:
    """A duration as integer microseconds."""
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def utc(at: datetime) -> datetime:
    """The same instant in UTC."""
    return at if at.tzinfo is UTC else at.astimezone(UTC)


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> datetime:
        """The wall clock: aware, UTC, microseconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds of this clock."""
        ...


class SystemClock:
    """This machine's clock."""

    monotonic = staticmethod(time.monotonic)  # read several times per job: without a frame of its own

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@types.coroutine
def pause() -> Generator[None, None, None]:
    """Let all other tasks of the event loop have a turn."""
    yield
