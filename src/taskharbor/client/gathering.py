"""Gathering: concurrent enqueues of one event loop share one call to the store.

    first caller ──► driver.enqueue([1]) ─ in flight ──────────► answered
    callers 2 … 9       gather meanwhile ──► driver.enqueue([2 … 9]) ──► each gets its own answer

Nobody waits for company: a job that finds no call in flight goes out alone, at once. Every caller
gets its answer only when its own job is stored.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Enqueued
from taskharbor.errors import DriverError
from taskharbor.model.job import NewJob

MAX_GATHERED = 500

_Waiting = tuple[NewJob, datetime | None, "asyncio.Future[Enqueued]"]


class Gathering:
    """The enqueues of one event loop on one driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._waiting: list[_Waiting] = []
        self._is_busy = False
        self._sender: asyncio.Task[None] | None = None

    async def enqueue(self, job: NewJob, now: datetime | None) -> Enqueued:
        """The store's answer for this job: alone, or together with those that came meanwhile."""
        if self._is_busy:
            answer: asyncio.Future[Enqueued] = asyncio.get_running_loop().create_future()
            self._waiting.append((job, now, answer))
            return await answer
        self._is_busy = True
        try:
            return (await self._driver.enqueue((job,), now=now))[0]
        finally:
            self._go_on()

    async def enqueue_soon(self, job: NewJob, now: datetime | None) -> Enqueued:
        """The same for a server, which has many callers: with all that come in this turn of the loop."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Enqueued] = loop.create_future()
        self._waiting.append((job, now, answer))
        if not self._is_busy:
            self._is_busy = True
            self._sender = loop.create_task(self._send_all())
        return await answer

    def _go_on(self) -> None:
        if self._waiting:
            self._sender = asyncio.get_running_loop().create_task(self._send_all())
        else:
            self._is_busy = False

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_GATHERED], self._waiting[MAX_GATHERED:]
                await self._send([item for item in batch if not item[2].done()])
        finally:
            self._is_busy = False
            self._drop_rest()

    async def _send(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        try:
            # One clock for all of them: the latest, so that nobody's job enters in the past of another's.
            answers = await self._driver.enqueue([job for job, _, _ in batch], now=_latest(batch))
        except DriverError as error:
            for _, _, future in batch:  # the store itself is in trouble: it would tell each of them the same
                _fail(future, error)
        except Exception:  # noqa: BLE001 - whatever was wrong with one, its neighbours go on alone
            for item in batch:
                await self._send_alone(item)
        except BaseException:
            for _, _, future in batch:
                future.cancel()
            raise
        else:
            for (_, _, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    async def _send_alone(self, item: _Waiting) -> None:
        """One bad or refused job must not fail its neighbours. Ids make the repeat harmless."""
        job, now, future = item
        if future.done():
            return
        try:
            [answer] = await self._driver.enqueue((job,), now=now)
        except Exception as error:  # noqa: BLE001 - it is handed to the caller who waits
            _fail(future, error)
        else:
            if not future.done():
                future.set_result(answer)

    def _drop_rest(self) -> None:
        for _, _, future in self._waiting:
            future.cancel()
        self._waiting.clear()


def _latest(batch: list[_Waiting]) -> datetime | None:
    return max((now for _, now, _ in batch if now is not None), default=None)


def _fail(future: asyncio.Future[Enqueued], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
