"""DeadLetters: how many jobs are dead now, by queue and cause.

The logbook counts deaths: a job that was retried and died again is in it twice. So pages ask the store for
the jobs that are dead now. Everybody shares one bounded look, as on the board:

    count of failed jobs ──► more than a walk can cover: not known ──► none is read
                         └─► else walk through them, without payloads
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import MAX_PAGE, Query
from taskharbor.model.cause import cause_of_job
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

if TYPE_CHECKING:
    from taskharbor.web.service import Service

MOST_LOOKED_AT = 20_000
LOOK_SECONDS = 0.25
LEAST_SECONDS = 2.0
"""A look is kept at least so long."""
SHARE = 50.0
"""And so many times as long as it took: looking takes at most 2 % of the time."""
SLOW_FOR = 60.0
"""A walk that ran out of time says for so long how many jobs a walk can cover."""
ONE_PAGE = MAX_PAGE


class DeadNow(msgspec.Struct, frozen=True):
    """What one look found."""

    died: Mapping[tuple[str, str], Sequence[datetime]]
    """When the dead jobs failed, by queue and cause."""
    is_all: bool

    def of(self, cause: str, sees: Callable[[str], bool]) -> list[datetime] | None:
        """Those of a cause in queues that the caller sees; None if there are too many to know."""
        if not self.is_all:
            return None
        return [
            at for (queue, one), all_of in self.died.items() if one == cause and sees(queue) for at in all_of
        ]


TOO_MANY = DeadNow({}, False)


class DeadLetters:
    """The last look, and when the next may be taken."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._looking: asyncio.Task[DeadNow] | None = None
        self._old_at = float("-inf")
        self._reach, self._reach_until = MOST_LOOKED_AT, float("-inf")

    async def look(self) -> DeadNow:
        """A look that is fresh enough; those who ask at the same time share one."""
        is_old = self._service.clock.monotonic() >= self._old_at
        task = self._looking
        if task is None or (task.done() and (is_old or task.cancelled() or task.exception() is not None)):
            task = self._looking = asyncio.ensure_future(self._take())
        return await asyncio.shield(task)

    async def _take(self) -> DeadNow:
        driver, began = await self._service.driver(), self._service.clock.monotonic()
        try:
            failed = sum(one.failed for one in (await driver.count(now=self._service.now())).values())
            return TOO_MANY if failed > self._most(began) else await self._walk(driver)
        finally:
            ended = self._service.clock.monotonic()
            self._old_at = ended + max(LEAST_SECONDS, SHARE * (ended - began))

    def _most(self, at: float) -> int:
        """How many jobs a walk can cover here."""
        return self._reach if at < self._reach_until else MOST_LOOKED_AT

    async def _walk(self, driver: Driver) -> DeadNow:
        began = self._service.clock.monotonic()
        died, looked_at = defaultdict[tuple[str, str], list[datetime]](list), 0
        query = Query(
            states=(JobState.FAILED,), newest_first=True, order_by="ended", limit=ONE_PAGE, payloads=False
        )
        while True:
            page = await driver.find(query, now=self._service.now())
            for job in page.jobs:
                died[_place(job)].append(failed_at(job))
            looked_at += len(page.jobs)
            if page.next_cursor is None:
                return DeadNow(died, True)
            now = self._service.clock.monotonic()
            if now - began >= LOOK_SECONDS:
                self._reach, self._reach_until = looked_at, now + SLOW_FOR
                return TOO_MANY
            if looked_at >= MOST_LOOKED_AT:  # more died meanwhile
                return TOO_MANY
            query = msgspec.structs.replace(query, cursor=page.next_cursor)


def _place(job: JobRecord) -> tuple[str, str]:
    """The queue and the cause; a job may be dead without one."""
    cause = cause_of_job(job)
    return job.queue, cause.id if cause else ""


def failed_at(job: JobRecord) -> datetime:
    """When its last attempt failed, as far as its record says."""
    return job.failed_at or job.finished_at or job.updated_at
