"""Wake-ups on a cluster: one connection blocks per queue, and one at the home for cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from taskharbor.drivers.inbox import Inbox
from taskharbor.drivers.redis.cluster.part import Part
from taskharbor.drivers.redis.waking import Reader, Waking
from taskharbor.errors import TaskHarborError


class MergedReader(Inbox):
    """The hints of several queues as one."""

    def __init__(
        self,
        part_of: Callable[[str], Awaitable[Part]],
        home: Waking,
        queues: tuple[str, ...],
        worker_id: str,
    ) -> None:
        super().__init__()
        self._part_of = part_of
        self._worker_id = worker_id
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
            self.tell(hint)
        self.end()

    async def aclose(self) -> None:
        self.end()
        for reader in self._readers:
            await reader.aclose()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
