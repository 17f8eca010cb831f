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
    """Answers of the last second, and those under way.

    With `share`, an answer that took long is kept so many times as long, to spare the store.
    """

    def __init__(self, clock: Clock, seconds: float = SECONDS, *, share: float = 0.0) -> None:
        self._clock = clock
        self._seconds = seconds
        self._share = share
        self._known: dict[Hashable, tuple[float, asyncio.Future[Reply]]] = {}

    async def get(self, question: Hashable, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """The answer to a question: a recent one, or a new one. Errors are not kept."""
        self._forget_old()
        known = self._known.get(question)
        if known is None:
            began = self._clock.monotonic()
            asked = asyncio.ensure_future(ask())
            known = self._known[question] = (began + self._seconds, asked)
            asked.add_done_callback(lambda done: self._ended(question, done, began))
        return await asyncio.shield(known[1])

    def clear(self) -> None:
        """Something was changed: what was answered may not be true any more."""
        self._known.clear()

    def _ended(self, question: Hashable, done: asyncio.Future[Reply], began: float) -> None:
        known = self._known.get(question)
        if known is None or known[1] is not done:
            return
        if done.cancelled() or done.exception() is not None:
            del self._known[question]
        elif self._share:
            now = self._clock.monotonic()
            self._known[question] = (max(known[0], now + self._share * (now - began)), done)

    def _forget_old(self) -> None:
        now = self._clock.monotonic()
        self._known = {question: known for question, known in self._known.items() if known[0] > now}
        while len(self._known) >= MOST:
            del self._known[next(iter(self._known))]
