"""Start a second run of an attempt that is far slower than its peers.

A type opts in with `speculate=`; its jobs carry the rule in their headers, so that a scheduler needs no
application code to know it. The store refuses what must not be copied: keyed jobs, copies, jobs that
already have one.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query, Speculated
from taskharbor.model.job import JobRecord
from taskharbor.model.speculation import rule_of
from taskharbor.model.state import JobState
from taskharbor.scheduler.duty import Now


class SpeculateOnStragglers:
    """Copy the runs that take longer than max(after, factor × usual)."""

    name = "speculate"

    def __init__(self, driver: Driver, now: Now, *, every_seconds: float = 2.0, page: int = 500) -> None:
        self._driver = driver
        self._now = now
        self._page = page
        self.every_seconds = every_seconds

    async def run_once(self) -> int:
        now = await self._now.read()
        usual = {info.type: info.usual for info in await self._driver.types(now=self._now.given)}
        query: Query | None = Query(states=(JobState.RUNNING,), limit=self._page)
        started = 0
        while query is not None:
            page = await self._driver.find(query, now=self._now.given)
            for job in page.jobs:
                if is_straggler(job, usual.get(job.type), now):
                    answer = await self._driver.speculate(job.id, now=self._now.given)
                    started += isinstance(answer, Speculated)
            query = (
                None
                if page.cursor is None
                else Query(states=(JobState.RUNNING,), limit=self._page, cursor=page.cursor)
            )
        return started


def is_straggler(job: JobRecord, usual: timedelta | None, now: datetime) -> bool:
    """Whether this run is so slow that a second one is worth it."""
    rule = rule_of(job.headers)
    if rule is None or job.started_at is None or job.key is not None:
        return False
    threshold = rule.after if usual is None else max(rule.after, rule.factor * usual)
    return now - job.started_at > threshold
