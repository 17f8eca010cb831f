"""Limits on request bodies: how large each may be, and how many bytes of them are held at once.

A large body reserves its memory before it is read, waits for it if need be, and keeps it until its request is
answered. One caller gets at most half, so that the others are served beside it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from taskharbor.drivers.contract import Driver
from taskharbor.web.config import ServerConfig
from taskharbor.web.problems import Problem

_KIB = 1024
SMALL = 64 * _KIB
"""Bodies up to this size reserve nothing: the connection buffers as much before the request is handled."""

# ------------------------------------------------------------------ the largest body of a driver verb

_IDS = 512 * _KIB  # ten thousand of them
_SIZES = {
    "get": _IDS,
    "cancel": _IDS,
    "delete": _IDS,
    "extend_leases": 4096 * _KIB,  # ten thousand leases, with progress
    "report_worker": 1024 * _KIB,
    "reserve": 1024 * _KIB,  # thousands of queues
    "wakeups": 1024 * _KIB,
    "count": 1024 * _KIB,
    "write_log": 10 * 1024 * _KIB,  # a hundred cells, and the names of ten thousand others
}
_ONE_JOB = ("put_schedule", "requeue")
_MANY_JOBS = ("enqueue", "settle", "exchange", "note", "resolve")


def largest_body(verb: str, config: ServerConfig, driver: Driver) -> int:
    """The most bytes a call of this driver verb may have. Only verbs that carry jobs may be large."""
    if verb in _MANY_JOBS:
        return config.max_batch_bytes
    if verb in _ONE_JOB:  # the payload is sent as base64, and ids may come with it
        return min(driver.max_payload * 4 // 3 + _IDS + SMALL, config.max_batch_bytes)
    return min(_SIZES.get(verb, SMALL), config.max_batch_bytes)


# ------------------------------------------------------------------ bodies held at once


class BodyMemory:
    """The bytes of large bodies that a server holds at once, all callers together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken = 0
        self._by_caller: Counter[str] = Counter()
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def taken(self) -> int:
        return self._taken

    async def take(self, caller: str, size: int, seconds: float, *, share: bool = True) -> None:
        """Reserve memory for a body. With `share`, one caller gets at most half of it all.

        Raises:
            Problem: `too-busy`, when none was free in time.
        """
        try:
            async with asyncio.timeout(seconds):
                while not self._fits(caller, size, share):
                    await self._until_released()
        except TimeoutError:
            raise Problem(
                "too-busy",
                f"the server has no memory left for a body of {size} bytes; nothing was done",
                headers={"Retry-After": "1", "Connection": "close"},
            ) from None
        self._taken += size
        self._by_caller[caller] += size

    def release(self, caller: str, size: int) -> None:
        self._taken -= size
        self._by_caller[caller] -= size
        if not self._by_caller[caller]:
            del self._by_caller[caller]
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _fits(self, caller: str, size: int, share: bool) -> bool:
        """A body of any size fits if it is the only one, of all and of its caller."""
        own = self._by_caller.get(caller, 0)
        has_share = not share or own == 0 or own + size <= self.most // 2
        return has_share and (self._taken == 0 or self._taken + size <= self.most)

    async def _until_released(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter
