"""EnqueueBatcher: concurrent enqueues of one event loop share one call to the store.

    first caller ──► driver.enqueue([1]) ─ in flight ──────────► stored
    callers 2 … 9        are collected ───► driver.enqueue([2 … 9]) ──► each gets its own answer

A caller that is alone is sent at once. Where there are several, the next batch waits while turns of the
event loop bring more jobs: callers that were answered together come back together. A caller gets its answer
only when its own job is stored.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Enqueued
from taskharbor.errors import DriverError
from taskharbor.model.clock import pause
from taskharbor.model.job import NewJob

MAX_BATCH = 500
QUIET_TURNS = 4
"""A batch is sent after so many turns of the event loop that brought no job to it."""
_MOST_TURNS = 64
_GATHER_SECONDS = 0.005

_Waiting = tuple[NewJob, datetime | None, "asyncio.Future[Enqueued]"]


class EnqueueBatcher:
    """The enqueues of one event loop on one driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._waiting: list[_Waiting] = []
        self._last_size = 1
        self._is_busy = False
        self._sender: asyncio.Task[None] | None = None

    async def enqueue(self, job: NewJob, now: datetime | None) -> Enqueued:
        """Store this job, at once or in the next batch; returns the store's answer for it."""
        if self._is_busy:
            answer: asyncio.Future[Enqueued] = asyncio.get_running_loop().create_future()
            self._waiting.append((job, now, answer))
            return await answer
        self._is_busy = True
        try:
            return (await self._driver.enqueue((job,), now=now))[0]
        finally:
            self._go_on()

    async def enqueue_in_batch(self, job: NewJob, now: datetime | None) -> Enqueued:
        """The same, but always in a batch: for servers, where many callers arrive in one turn of the loop."""
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
                await self._gather()
                self._last_size = len(self._waiting)
                batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                await self._send([item for item in batch if not item[2].done()])
        finally:
            self._is_busy = False
            self._drop_rest()

    async def _gather(self) -> None:
        """Let callers that are on their way join the next batch.

        A call to the store costs as much as dozens of turns of the loop. On SQLite it runs in a thread, too,
        and what this loop does meanwhile costs both of them twice: they pass the interpreter to and fro.
        """
        if len(self._waiting) == self._last_size == 1:
            return
        monotonic = self._driver.clock.monotonic
        quiet, size, until = 0, 0, monotonic() + _GATHER_SECONDS
        for _ in range(_MOST_TURNS):
            quiet = quiet + 1 if len(self._waiting) == size else 0
            size = len(self._waiting)
            if quiet == QUIET_TURNS or size >= MAX_BATCH or monotonic() >= until:
                return
            await pause()

    async def _send(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        try:
            # One `now` for the batch: the latest, so that no job is stored earlier than its caller's clock.
            answers = await self._driver.enqueue([job for job, _, _ in batch], now=_latest(batch))
        except DriverError as error:
            for _, _, future in batch:  # the store failed, so each of them would fail alone, too
                _fail(future, error)
        except Exception:  # noqa: BLE001 - one bad job must not fail the batch: send each alone
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
        """Send one job by itself. It may have been sent before: its id makes that harmless."""
        job, now, future = item
        if future.done():
            return
        try:
            [answer] = await self._driver.enqueue((job,), now=now)
        except Exception as error:  # noqa: BLE001 - raised in the waiting caller
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
