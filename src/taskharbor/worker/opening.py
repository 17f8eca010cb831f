"""Opening a store that may not be there yet: a machine that boots starts its programs in any order.

    open ──► answered
      │ does not answer: one line in the log, then again and again
      ├── the time is over ──► DriverUnavailable
      └── asked to stop    ──► nothing was opened

What a store refuses (a wrong password, a missing table) is an error at once: it would be refused again.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from taskharbor.drivers.contract import Driver
from taskharbor.errors import DriverUnavailable
from taskharbor.model.duration import shown
from taskharbor.model.entropy import Entropy
from taskharbor.worker.timing import Timing, dropped

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 2.0


async def opened(
    driver: Driver, wait: timedelta, stopping: asyncio.Event, timing: Timing, entropy: Entropy
) -> bool:
    """Open this driver, trying for as long as `wait`. False: it was asked to stop first.

    Raises:
        DriverUnavailable: the store did not answer in this time.
    """
    until = timing.monotonic() + wait.total_seconds()
    longest = FIRST_PAUSE_SECONDS
    while not stopping.is_set():
        try:
            return await _opened(driver, stopping)
        except DriverUnavailable as error:
            pause = entropy.between(longest / 2, longest)
            if timing.monotonic() + pause >= until:
                raise
            driver.outage.failed(f"open; tried for {shown(wait)}", error)
            await timing.until(stopping, pause)
            longest = min(longest * 2, LONGEST_PAUSE_SECONDS)
    return False


async def _opened(driver: Driver, stopping: asyncio.Event) -> bool:
    """One try; a connection that hangs does not delay a stop."""
    opening = asyncio.ensure_future(driver.open())
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((opening, stopped), return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            opening.result()
            driver.outage.answered()
            return True
    finally:
        await dropped(opening, stopped)
    await driver.close()  # the answer may have come while it was cancelled
    return False
