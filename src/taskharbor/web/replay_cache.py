"""ReplayCache: a call that is sent again after a lost reply is done once and gets the same answer.

    first time                               ──► done, answer kept for a while
    again, known here                        ──► the same answer, or that of the call still running
    again, and it certainly never arrived    ──► done now
    again, unknown (after a restart, on another server, too long ago) ──► done if a repeat is harmless, else
                                                 refused: the caller must find out by itself

The cache belongs to this process and is not needed for safety: job ids and lease tokens make a repeat
harmless without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from taskharbor.drivers.error_codec import failure_of
from taskharbor.errors import DriverUnavailable
from taskharbor.model.clock import Clock
from taskharbor.web.problems import Problem

KEPT_SECONDS = 120.0
KEPT_BYTES = 32 * 1024 * 1024
KEPT_CALLS = 50_000

Key = tuple[str, str, bytes, int]
"""Caller, verb, call id and a hash of the body: another body under the same id is another call."""


class CachedReply:
    """One call and, once there is one, its answer."""

    __slots__ = ("at", "body", "key", "waiting", "was_repeated")

    def __init__(self, key: Key, at: float) -> None:
        self.key = key
        self.at = at
        self.body: bytes | None = None
        self.was_repeated = False
        self.waiting: list[asyncio.Future[bytes | None]] = []

    def settle(self, body: bytes | None) -> None:
        self.body = body
        for future in self.waiting:
            if not future.done():
                future.set_result(body)
        self.waiting.clear()


class ReplayCache:
    """Recent calls and their answers. `boot` identifies this run of the server."""

    def __init__(self, boot: str, clock: Clock) -> None:
        self.boot = boot
        self._clock = clock
        self._under_way: dict[Key, CachedReply] = {}
        self._kept: dict[Key, CachedReply] = {}  # in the order in which they were answered
        self._bytes = 0
        self._forgot_until = float("-inf")  # every call that started after this is still known

    def __len__(self) -> int:
        return len(self._kept)

    async def once(self, key: Key, do: Callable[[CachedReply], Awaitable[bytes]]) -> bytes:
        """Do a call that is new here and keep its answer; errors are not kept."""
        self._forget_old()
        kept = self._under_way[key] = CachedReply(key, self._clock.monotonic())
        body = None
        try:
            body = await do(kept)
        finally:
            self._under_way.pop(key, None)
            kept.settle(body)
            if body is not None:
                self._keep(kept, body)
        return body

    async def again(
        self, key: Key, repeat: bytes, may_repeat: bool, do: Callable[[CachedReply], Awaitable[bytes]]
    ) -> bytes:
        """Answer a call that was sent before. Raises Problem `cannot-tell`."""
        kept = self._kept.get(key) or self._under_way.get(key)
        if kept is not None:
            kept.was_repeated = True
            body = kept.body if kept.body is not None else await self._answer_of(kept)
            if body is not None:
                return body
        elif not may_repeat and not self._never_came(repeat):
            raise _cannot_tell()
        return await self.once(key, do)

    def forget(self, kept: CachedReply) -> None:
        """Drop an answer that is no longer true."""
        if self._kept.get(kept.key) is kept:
            del self._kept[kept.key]
            self._bytes -= len(kept.body or b"")
            self._forgot_until = max(self._forgot_until, kept.at)

    # ------------------------------------------------------------------

    def _keep(self, kept: CachedReply, body: bytes) -> None:
        before = self._kept.pop(kept.key, None)
        self._bytes += len(body) - len((before and before.body) or b"")
        self._kept[kept.key] = kept

    async def _answer_of(self, kept: CachedReply) -> bytes | None:
        """The answer of a call that is running; None if it fails, so it was not done."""
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        kept.waiting.append(future)
        return await future

    def _never_came(self, repeat: bytes) -> bool:
        """Whether a call first sent to `BOOT`, `SECONDS` ago, would be known here if it had arrived."""
        boot, _, seconds = repeat.decode("latin-1").partition(" ")
        try:
            first_sent = self._clock.monotonic() - float(seconds)
        except ValueError:
            return False
        return boot == self.boot and first_sent > self._forgot_until

    def _forget_old(self) -> None:
        oldest_wanted = self._clock.monotonic() - KEPT_SECONDS
        while self._kept:
            kept = next(iter(self._kept.values()))
            is_too_much = len(self._kept) >= KEPT_CALLS or self._bytes > KEPT_BYTES
            if not is_too_much and kept.at >= oldest_wanted:
                return
            self.forget(kept)


def _cannot_tell() -> Problem:
    """Not a 503: the server is fine and asking again does not help. The HTTP driver raises the failure."""
    message = "this call was sent before, and this server does not know whether it was done"
    return Problem("cannot-tell", message, failure=failure_of(DriverUnavailable(message, done=None)))
