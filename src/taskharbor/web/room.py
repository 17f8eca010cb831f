"""Room: the bytes of bodies that a server holds at the same time, all callers together.

A body that is announced takes its room before it is read, waits for it if need be, and keeps it until its
call is answered. One caller has half of it at most, so that the others get in beside it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from taskharbor.web.problems import Problem

SMALL = 64 * 1024
"""Bodies up to here take no room: what is read before anybody looks at a request is as much."""


class Room:
    """So many bytes at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken = 0
        self._of: Counter[str] = Counter()
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def taken(self) -> int:
        return self._taken

    async def take(self, who: str, size: int, seconds: float, *, share: bool = True) -> None:
        """Room for so many bytes; `share`: as one caller of many. Raises Problem `too-busy`."""
        try:
            async with asyncio.timeout(seconds):
                while not self._fits(who, size, share):
                    await self._until_someone_leaves()
        except TimeoutError:
            raise Problem(
                "too-busy",
                f"there is no room for a body of {size} bytes beside those under way; nothing was done",
                headers={"Retry-After": "1", "Connection": "close"},
            ) from None
        self._taken += size
        self._of[who] += size

    def give_back(self, who: str, size: int) -> None:
        self._taken -= size
        self._of[who] -= size
        if not self._of[who]:
            del self._of[who]
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _fits(self, who: str, size: int, share: bool) -> bool:
        """One body fits into an empty room, and into an empty share, however large it is."""
        own = self._of.get(who, 0)
        has_share = not share or own == 0 or own + size <= self.most // 2
        return has_share and (self._taken == 0 or self._taken + size <= self.most)

    async def _until_someone_leaves(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter
