"""DeadLetters: how many jobs are dead now, by queue and cause.

The logbook counts deaths: a job that was retried and died again is in it twice. So pages ask the store for
the jobs that are dead now. Everybody shares one bounded look, as on the board.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from taskharbor.drivers.messages import MAX_PAGE, Query
from taskharbor.model.cause import cause_of_job
from taskharbor.model.state import JobState

if TYPE_CHECKING:
    from taskharbor.web.service import Service

MOST_LOOKED_AT = 20_000
LOOK_SECONDS = 0.5
LEAST_SECONDS = 2.0
"""A look is kept at least so long."""
SHARE = 20.0
"""And so many times as long as it took."""


class DeadNow(msgspec.Struct, frozen=True):
    """What one look found."""

    counts: Counter[tuple[str, str]]
    """Dead jobs by queue and cause."""
    is_all: bool

    def of(self, cause: str, sees: Callable[[str], bool]) -> int | None:
        """The dead jobs of a cause in queues that the caller sees; None if there are too many to know."""
        if not self.is_all:
            return None
        return sum(count for (queue, one), count in self.counts.items() if one == cause and sees(queue))


class DeadLetters:
    """The last look, and when the next may be taken."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._looking: asyncio.Task[DeadNow] | None = None
        self._old_at = float("-inf")

    async def look(self) -> DeadNow:
        """A look that is fresh enough; those who ask at the same time share one."""
        is_old = self._service.clock.monotonic() >= self._old_at
        task = self._looking
        if task is None or (task.done() and (is_old or task.cancelled() or task.exception() is not None)):
            task = self._looking = asyncio.ensure_future(self._take())
        return await asyncio.shield(task)

    async def _take(self) -> DeadNow:
        clock, began = self._service.clock, self._service.clock.monotonic()
        driver, counts, looked_at = await self._service.driver(), Counter[tuple[str, str]](), 0
        query = Query(states=(JobState.FAILED,), newest_first=True, order_by="ended", limit=MAX_PAGE)
        while True:
            page = await driver.find(query, now=self._service.now())
            looked_at += len(page.jobs)
            for job in page.jobs:
                cause = cause_of_job(job)
                counts[job.queue, "" if cause is None else cause.id] += 1
            took = clock.monotonic() - began
            self._old_at = began + took + max(LEAST_SECONDS, SHARE * took)
            if page.next_cursor is None or looked_at >= MOST_LOOKED_AT or took >= LOOK_SECONDS:
                return DeadNow(counts, page.next_cursor is None)
            query = msgspec.structs.replace(query, cursor=page.next_cursor)
