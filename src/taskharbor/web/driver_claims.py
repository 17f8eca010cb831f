"""Claims of callers who may be gone before they hear of them.

A claim that waits ends when its caller goes. Jobs that were handed out to somebody who is gone are
kept for a moment, in case the same call comes again, and then wait again at their place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Claimed, Exchanged, Reclaimed, Wakeups
from taskharbor.errors import TaskHarborError
from taskharbor.model.job import NO_TIME, JobRecord
from taskharbor.model.settlement import Release
from taskharbor.web.call import Call
from taskharbor.web.portions import jobs_in
from taskharbor.web.repeats import Kept, Repeats
from taskharbor.web.service import Service
from taskharbor.web.welcome import Welcome

GRACE_SECONDS = 2.0
LOOK_SECONDS = 0.5  # how often a waiting claim looks by itself: hints do not tell what becomes due


class Claims:
    """The verbs that hand out jobs: `reserve` and `exchange`."""

    def __init__(self, service: Service, repeats: Repeats) -> None:
        self._service = service
        self._repeats = repeats

    async def claimed(
        self, verb: str, call: Call, driver: Driver, arguments: dict[str, Any], kept: Kept | None
    ) -> Claimed | Exchanged:
        wait: timedelta = arguments.pop("wait", NO_TIME)
        if wait > NO_TIME:
            return await self._claimed_within(wait, call, driver, arguments, kept)
        answer = await self._service.portions.claim(driver, verb, arguments)
        jobs = jobs_in(answer)
        if jobs and _is_over(call.disconnected()):
            self._give_back_soon(driver, jobs, arguments["now"], kept)
        return answer

    # ------------------------------------------------------------------ long polls

    async def _claimed_within(
        self, wait: timedelta, call: Call, driver: Driver, arguments: dict[str, Any], kept: Kept | None
    ) -> Claimed:
        """A job as soon as there is one; nothing when the time is over, or the server stops."""
        claim: Claim = arguments["claim"]
        gone = asyncio.ensure_future(call.disconnected())
        hints = driver.wakeups(claim.queues, claim.worker_id) if driver.capabilities.wakeups else None
        try:
            claimed = await self._first(wait.total_seconds(), Welcome(call), driver, arguments, hints, gone)
        finally:
            if hints is not None:
                await hints.aclose()
            is_gone = gone.done()
            gone.cancel()
        if claimed.jobs and is_gone:
            self._give_back_soon(driver, claimed.jobs, arguments["now"], kept)
        return claimed

    async def _first(
        self,
        seconds: float,
        welcome: Welcome,
        driver: Driver,
        arguments: dict[str, Any],
        hints: Wakeups | None,
        gone: asyncio.Future[None],
    ) -> Claimed:
        clock, stopping = self._service.clock, self._service.stopping
        until = clock.monotonic() + min(seconds, self._service.config.max_wait_seconds)
        given_up: tuple[Reclaimed, ...] = ()
        while not gone.done():
            await welcome.check()
            answer = await self._service.portions.claim(driver, "reserve", arguments)
            jobs, given_up = jobs_in(answer), given_up + answer.given_up
            left = until - clock.monotonic()
            if jobs or left <= 0 or stopping.is_set():
                return Claimed(jobs, given_up)
            news: list[Coroutine[Any, Any, Any]] = [stopping.wait(), clock.sleep(min(left, LOOK_SECONDS))]
            if hints is not None:
                news.append(hints.__anext__())
            await _first_of(gone, news)
        return Claimed([], given_up)

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


async def _first_of(gone: asyncio.Future[None], news: list[Coroutine[Any, Any, Any]]) -> None:
    """Return at the first of these. The others are given up, except `gone`, which is asked again."""
    tasks = [asyncio.ensure_future(each) for each in news]
    try:
        await asyncio.wait((gone, *tasks), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
