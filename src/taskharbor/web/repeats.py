"""Repeats: a call that is sent again after a lost reply is done once, and answered as it was.

    call ──► done, answer kept for a while
    call again, known here ─────────────────────► the same answer, or that of the one still under way
    call again, certainly never came here ──────► done now
    call again, nobody can tell (a restart, another server, too long ago) ──► done if that is harmless,
                                                  else refused: the caller finds out by itself

What is kept is a convenience of this process, and no second store: job ids and lease tokens keep a
repeat from doing harm also without it.
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
"""Who calls, the verb, the id of the call and a hash of its body: who says something else under an old id
makes another call, and must not get the answer of the old one."""


class Kept:
    """One call: its answer, once there is one."""

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


class Repeats:
    """The calls of the last while. `boot` names this start of this server."""

    def __init__(self, boot: str, clock: Clock) -> None:
        self.boot = boot
        self._clock = clock
        self._under_way: dict[Key, Kept] = {}
        self._kept: dict[Key, Kept] = {}  # in the order in which they were answered
        self._bytes = 0
        self._forgot_until = float("-inf")  # of what was begun after this, everything is still known

    def __len__(self) -> int:
        return len(self._kept)

    async def once(self, key: Key, do: Callable[[Kept], Awaitable[bytes]]) -> bytes:
        """Do a call that is here for the first time, and keep its answer; an error is not kept."""
        self._forget_old()
        kept = self._under_way[key] = Kept(key, self._clock.monotonic())
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
        self, key: Key, repeat: bytes, may_repeat: bool, do: Callable[[Kept], Awaitable[bytes]]
    ) -> bytes:
        """Answer a call that says it was sent before. Raises Problem `cannot-tell`."""
        kept = self._kept.get(key) or self._under_way.get(key)
        if kept is not None:
            kept.was_repeated = True
            body = kept.body if kept.body is not None else await self._answer_of(kept)
            if body is not None:
                return body
        elif not may_repeat and not self._never_came(repeat):
            raise _cannot_tell()
        return await self.once(key, do)

    def forget(self, kept: Kept) -> None:
        """An answer that does not hold any more."""
        if self._kept.get(kept.key) is kept:
            del self._kept[kept.key]
            self._bytes -= len(kept.body or b"")
            self._forgot_until = max(self._forgot_until, kept.at)

    # ------------------------------------------------------------------

    def _keep(self, kept: Kept, body: bytes) -> None:
        before = self._kept.pop(kept.key, None)
        self._bytes += len(body) - len((before and before.body) or b"")
        self._kept[kept.key] = kept

    async def _answer_of(self, kept: Kept) -> bytes | None:
        """Of one that is under way; None when it fails, and so was not done."""
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        kept.waiting.append(future)
        return await future

    def _never_came(self, repeat: bytes) -> bool:
        """Whether a call that was sent first to `BOOT`, `SECONDS` ago, would be known if it had come."""
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
    """No 503: nothing is wrong here, and nothing gets better by asking again. A driver raises the failure."""
    message = "this call was sent before, and this server cannot tell whether it was done"
    return Problem("cannot-tell", message, failure=failure_of(DriverUnavailable(message, done=None)))
