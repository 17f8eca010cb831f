"""Claims whose caller may have disconnected.

Jobs that were handed out to a caller who is gone are kept for a moment, in case the same call comes
again, and then wait again at their place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import datetime
from typing import Any

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claimed, Exchanged
from taskharbor.errors import TaskHarborError
from taskharbor.model.job import JobRecord
from taskharbor.model.settlement import Release
from taskharbor.web.call import Call
from taskharbor.web.portions import jobs_in
from taskharbor.web.repeats import Kept, Repeats
from taskharbor.web.service import Service

GRACE_SECONDS = 2.0


class Claims:
    """The verbs that hand out jobs: `reserve` and `exchange`."""

    def __init__(self, service: Service, repeats: Repeats) -> None:
        self._service = service
        self._repeats = repeats

    async def claimed(
        self, verb: str, call: Call, driver: Driver, arguments: dict[str, Any], kept: Kept | None
    ) -> Claimed | Exchanged:
        answer = await self._service.portions.claim(driver, verb, arguments)
        jobs = jobs_in(answer)
        if jobs and _is_over(call.disconnected()):
            self._give_back_soon(driver, jobs, arguments["now"], kept)
        return answer

    # ------------------------------------------------------------------ giving back

    def _give_back_soon(
        self, driver: Driver, jobs: list[JobRecord], now: datetime | None, kept: Kept | None
    ) -> None:
        task = asyncio.ensure_future(self._give_back(driver, jobs, now, kept))
        self._service.afterwards.add(task)
        task.add_done_callback(self._service.afterwards.discard)

    async def _give_back(
        self, driver: Driver, jobs: list[JobRecord], now: datetime | None, kept: Kept | None
    ) -> None:
        await self._service.pause(GRACE_SECONDS)
        if kept is not None:
            if kept.was_repeated:
                return  # its caller came back for it
            self._repeats.forget(kept)
        try:
            await driver.settle([Release(job.lease) for job in jobs], now=now)
        except TaskHarborError:
            return  # then their leases run out


def _is_over(looking: Coroutine[Any, Any, None]) -> bool:
    """Whether a coroutine that waits would end at once: one step of it, and no task for so little."""
    try:
        looking.send(None)
    except StopIteration:
        return True
    finally:
        looking.close()
    return False
