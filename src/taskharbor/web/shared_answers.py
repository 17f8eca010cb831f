"""SharedAnswers: equal questions within a second get one answer.

Several people look at the same page, and each page asks again every few seconds. A change through this
server makes every answer old at once, so that the person who made it sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from taskharbor.model.clock import Clock
from taskharbor.web.reply import Reply

SECONDS = 1.0
MOST = 200


class SharedAnswers:
    """Answers of the last second, and those under way."""

    def __init__(self, clock: Clock, seconds: float = SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self._known: dict[Hashable, tuple[float, asyncio.Future[Reply]]] = {}

    async def get(self, question: Hashable, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """The answer to a question: a recent one, or a new one. Errors are not kept."""
        self._forget_old()
        known = self._known.get(question)
        if known is None:
            asked = asyncio.ensure_future(ask())
            known = self._known[question] = (self._clock.monotonic(), asked)
            asked.add_done_callback(lambda done: self._ended(question, done))
        return await asyncio.shield(known[1])

    def clear(self) -> None:
        """Something was changed: what was answered may not be true any more."""
        self._known.clear()

    def _ended(self, question: Hashable, done: asyncio.Future[Reply]) -> None:
        if done.cancelled() or done.exception() is not None:
            known = self._known.get(question)
            if known is not None and known[1] is done:
                del self._known[question]

    def _forget_old(self) -> None:
        oldest = self._clock.monotonic() - self._seconds
        while self._known:
            question, (at, _) = next(iter(self._known.items()))
            if at > oldest and len(self._known) < MOST:
                return
            del self._known[question]
