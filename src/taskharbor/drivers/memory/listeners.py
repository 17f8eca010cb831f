"""Wake-ups inside one process: who listens, and how a hint reaches another thread's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from taskharbor.drivers.inbox import Inbox
from taskharbor.drivers.messages import Wakeup, WakeupKind


class Listeners:
    """All readers of one store."""

    def __init__(self) -> None:
        self._all: list[Listener] = []

    def listen(self, queues: tuple[str, ...], worker_id: str) -> Listener:
        listener = Listener(self, queues, worker_id)
        self._all.append(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        if listener in self._all:
            self._all.remove(listener)

    def work(self, queues: Iterable[str]) -> None:
        for queue in sorted(queues):  # a set has no order of its own, and a seed must replay
            for listener in self._all:
                if queue in listener.queues:
                    listener.put(Wakeup(WakeupKind.WORK, queue=queue))

    def cancel(self, job_id: str, worker_id: str | None) -> None:
        for listener in self._all:
            if listener.worker_id == worker_id:
                listener.put(Wakeup(WakeupKind.CANCEL, job_id=job_id))


class Listener(Inbox):
    """One reader of hints; they may come from any thread."""

    def __init__(self, listeners: Listeners, queues: tuple[str, ...], worker_id: str) -> None:
        super().__init__()
        self.queues = frozenset(queues)
        self.worker_id = worker_id
        self._listeners = listeners
        self._loop = asyncio.get_running_loop()

    def put(self, hint: Wakeup) -> None:
        """May be called from any thread."""
        if hint not in self._unread:
            self._unread[hint] = None
            self._ring()

    async def aclose(self) -> None:
        self._listeners.leave(self)
        self.end()

    def _ring(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:  # its loop is closed
            self._listeners.leave(self)
