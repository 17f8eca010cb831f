"""Claims whose caller may have disconnected.

Jobs that were claimed for a caller who is gone are kept for a moment, in case the same call is sent
again, and are then released.
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
from taskharbor.web.answer_limit import jobs_in
from taskharbor.web.replay_cache import CachedReply, ReplayCache
from taskharbor.web.request import Request
from taskharbor.web.service import Service

GRACE_SECONDS = 2.0


class Claims:
    """The verbs that claim jobs: `reserve` and `exchange`."""

    def __init__(self, service: Service, repeats: ReplayCache) -> None:
        self._service = service
        self._replay_cache = repeats

    async def claimed(
        self, verb: str, request: Request, driver: Driver, arguments: dict[str, Any], kept: CachedReply | None
    ) -> Claimed | Exchanged:
        answer = await self._service.answer_limit.claim(driver, verb, arguments)
        jobs = jobs_in(answer)
        if jobs and _is_over(request.disconnected()):
            self._release_soon(driver, jobs, arguments["now"], kept)
        return answer

    # ------------------------------------------------------------------ releasing

    def _release_soon(
        self, driver: Driver, jobs: list[JobRecord], now: datetime | None, kept: CachedReply | None
    ) -> None:
        task = asyncio.ensure_future(self._release(driver, jobs, now, kept))
        self._service.background.add(task)
        task.add_done_callback(self._service.background.discard)

    async def _release(
        self, driver: Driver, jobs: list[JobRecord], now: datetime | None, kept: CachedReply | None
    ) -> None:
        await self._service.pause(GRACE_SECONDS)
        if kept is not None:
            if kept.was_repeated:
                return  # its caller asked again and got the jobs
            self._replay_cache.forget(kept)
        try:
            await driver.settle([Release(job.lease) for job in jobs], now=now)
        except TaskHarborError:
            return  # then their leases expire


def _is_over(looking: Coroutine[Any, Any, None]) -> bool:
    """Whether a waiting coroutine would end at once: run one step of it, without a task."""
    try:
        looking.send(None)
    except StopIteration:
        return True
    finally:
        looking.close()
    return False
