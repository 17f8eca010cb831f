"""keep_pace: move a simulated clock on while every handler that runs is asleep on it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from taskharbor.testing.clock import SimulatedClock, turn_loop

MAX_JUMPS = 10_000
_LOOK_SECONDS = 0.002
_FAREWELL_SECONDS = 5.0


async def keep_pace(
    clock: SimulatedClock, working: asyncio.Future[Any], running: Mapping[str, str], until: datetime | None
) -> None:
    """Until the work is done: whenever all running jobs (id → type) sleep on the clock, wake the next.

    The clock goes from one waking to the next, so that heartbeats and time limits keep their turn. A
    handler that is busy in a thread or waits for something real is given the time it takes.

    Raises:
        AssertionError: a handler sleeps beyond `until`, or again and again without an end.
    """
    jumps = 0
    while not working.done():
        await turn_loop()
        wake_at = clock.next_wake_at
        if not running or wake_at is None or not running.keys() <= clock.jobs_asleep():
            await asyncio.wait((working,), timeout=_LOOK_SECONDS)
        elif (until is not None and wake_at > until) or jumps >= MAX_JUMPS:
            names = ", ".join(f"{job_id} ({type})" for job_id, type in sorted(running.items()))
            await _given_up(working)
            where = f"beyond {until}" if jumps < MAX_JUMPS else f"after {jumps} wakings"
            raise AssertionError(f"still asleep on the simulated clock {where}: job {names}")
        else:
            jumps += 1
            clock.advance_to(wake_at)


async def _given_up(working: asyncio.Future[Any]) -> None:
    working.cancel()
    await asyncio.wait((working,), timeout=_FAREWELL_SECONDS)
