"""Wake-ups on a cluster: one connection blocks per queue, and one at the home for cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

from taskharbor.drivers.messages import Wakeup
from taskharbor.drivers.redis.cluster.part import Part
from taskharbor.drivers.redis.waking import Reader, Waking
from taskharbor.errors import TaskHarborError


class MergedReader:
    """The hints of several queues as one."""

    def __init__(
        self,
        part_of: Callable[[str], Awaitable[Part]],
        home: Waking,
        queues: tuple[str, ...],
        worker_id: str,
    ) -> None:
        self._part_of = part_of
        self._worker_id = worker_id
        self._unread: dict[Wakeup, None] = {}
        self._news = asyncio.Event()
        self._is_closed = False
        self._readers: list[Reader] = []
        self._tasks = [asyncio.create_task(self._follow(home.listen((), worker_id)))]
        self._tasks += [asyncio.create_task(self._listen(queue)) for queue in queues]

    async def _listen(self, queue: str) -> None:
        with suppress(TaskHarborError):  # hints are a bonus; the poll finds what they do not tell
            part = await self._part_of(queue)
            await self._follow(part.waking.listen((queue,), self._worker_id))

    async def _follow(self, reader: Reader) -> None:
        self._readers.append(reader)
        async for hint in reader:
            self._unread[hint] = None
            self._news.set()
        self.end()

    def end(self) -> None:
        self._is_closed = True
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Wakeup:
        while not self._unread:
            if self._is_closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        hint = next(iter(self._unread))
        del self._unread[hint]
        return hint

    async def aclose(self) -> None:
        self._unread.clear()
        self.end()
        for reader in self._readers:
            await reader.aclose()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
