"""Wake-ups on a cluster: one blocking connection per queue, and one to the harbor's slot for cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from taskharbor.drivers.messages import Inbox
from taskharbor.drivers.redis.cluster.queue_store import QueueStore
from taskharbor.drivers.redis.wakeups import Subscription, WakeupListener
from taskharbor.errors import TaskHarborError


class MergedSubscription(Inbox):
    """The wake-ups of several queues as one stream."""

    def __init__(
        self,
        store_of: Callable[[str], Awaitable[QueueStore]],
        harbor: WakeupListener,
        queues: tuple[str, ...],
        worker_id: str,
    ) -> None:
        super().__init__()
        self._store_of = store_of
        self._worker_id = worker_id
        self._subscriptions: list[Subscription] = []
        self._tasks = [asyncio.create_task(self._follow(harbor.listen((), worker_id)))]
        self._tasks += [asyncio.create_task(self._listen(queue)) for queue in queues]

    async def _listen(self, queue: str) -> None:
        with suppress(TaskHarborError):  # wake-ups are a bonus: polling finds the rest
            store = await self._store_of(queue)
            await self._follow(store.wakeups.listen((queue,), self._worker_id))

    async def _follow(self, subscription: Subscription) -> None:
        self._subscriptions.append(subscription)
        async for wakeup in subscription:
            self.put(wakeup)
        self.end()

    async def aclose(self) -> None:
        self.end()
        for subscription in self._subscriptions:
            await subscription.aclose()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
