"""The hints that a listener has not read yet: what every driver's `listen` hands out is one of these."""

from __future__ import annotations

import asyncio
from typing import Self

from taskharbor.drivers.messages import Wakeup


class Inbox:
    """Hints in the order they came. One that has not been read yet is not repeated.

    It belongs to the event loop it was made in; `tell` and `end` must be called there.
    """

    def __init__(self) -> None:
        self._unread: dict[Wakeup, None] = {}
        self._news = asyncio.Event()
        self._is_closed = False

    def tell(self, hint: Wakeup) -> None:
        self._unread[hint] = None
        self._news.set()

    def end(self) -> None:
        """No more hints: whoever waits for one is let go."""
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
        """Stop listening. Closing twice is fine."""
        self.end()
