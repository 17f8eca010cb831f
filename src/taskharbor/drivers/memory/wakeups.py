"""Wake-ups inside one process: who listens, and how a wake-up reaches another thread's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from taskharbor.drivers.messages import Inbox, Wakeup, WakeupKind


class Subscriptions:
    """All listeners of one store."""

    def __init__(self) -> None:
        self._all: list[Subscription] = []

    def listen(self, queues: tuple[str, ...], worker_id: str) -> Subscription:
        subscription = Subscription(self, queues, worker_id)
        self._all.append(subscription)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        if subscription in self._all:
            self._all.remove(subscription)

    def work(self, queues: Iterable[str]) -> None:
        """Work has arrived in these queues."""
        for queue in sorted(queues):  # a set has no order of its own, and a seed must replay
            for subscription in self._all:
                if queue in subscription.queues:
                    subscription.put(Wakeup(WakeupKind.WORK, queue=queue))

    def cancel(self, job_id: str, worker_id: str | None) -> None:
        """A cancel was requested for a job that this worker runs."""
        for subscription in self._all:
            if subscription.worker_id == worker_id:
                subscription.put(Wakeup(WakeupKind.CANCEL, job_id=job_id))


class Subscription(Inbox):
    """The wake-ups of one worker for some queues."""

    def __init__(self, subscriptions: Subscriptions, queues: tuple[str, ...], worker_id: str) -> None:
        super().__init__()
        self.queues = frozenset(queues)
        self.worker_id = worker_id
        self._subscriptions = subscriptions
        self._loop = asyncio.get_running_loop()

    def put(self, wakeup: Wakeup) -> None:
        """May be called from any thread."""
        if wakeup not in self._unread:
            self._unread[wakeup] = None
            self._ring()

    async def aclose(self) -> None:
        self._subscriptions.leave(self)
        self.end()

    def _ring(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:  # its loop is closed
            self._subscriptions.leave(self)
