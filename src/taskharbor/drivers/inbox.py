"""Inbox: the unread wake-ups of one listener; what `wakeups()` of a driver hands out."""

from __future__ import annotations

import asyncio
from typing import Self

from taskharbor.drivers.messages import Wakeup


class Inbox:
    """Wake-ups in the order they came. One that is still unread is not added again.

    Not thread-safe: call `put` and `end` in the event loop that made it.
    """

    def __init__(self) -> None:
        self._unread: dict[Wakeup, None] = {}
        self._news = asyncio.Event()
        self._is_closed = False

    def put(self, hint: Wakeup) -> None:
        self._unread[hint] = None
        self._news.set()

    def end(self) -> None:
        """No more wake-ups: a reader that waits for one stops."""
        self._is_closed = True
        self._unread.clear()
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
        """Stop listening. Safe to call twice."""
        self.end()
