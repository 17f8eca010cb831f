"""Enqueue for blocking callers on a cluster: a thread with an event loop and a handle of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from datetime import datetime

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Enqueued
from taskharbor.model.job import NewJob


class Backroom:
    """Made when the first blocking caller comes; any thread may call."""

    def __init__(self, make: Callable[[], Driver]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._driver: Driver | None = None
        self._opening: asyncio.Lock | None = None

    def enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        return asyncio.run_coroutine_threadsafe(self._enqueue(jobs, now), self._running_loop()).result()

    def close(self) -> None:
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._leave(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def _enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._driver is None:
                self._driver = await self._make().open()
        return await self._driver.do_enqueue(jobs, now)

    async def _leave(self) -> None:
        driver, self._driver, self._opening = self._driver, None, None
        if driver is not None:
            await driver.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="taskharbor-enqueue", daemon=True
                )
                self._thread.start()
            return self._loop
