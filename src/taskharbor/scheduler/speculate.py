"""Start a second run of an attempt that is far slower than its peers.

A type opts in with `speculate=`; its jobs carry the rule in their headers, so that a scheduler needs no
application code to know it. The store refuses what must not be copied: keyed jobs, copies, runs that
have or had one. The faster half of the workers gets a head start for a copy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query, Speculated
from taskharbor.events import EventBus, SpeculationStarted, SpeculationWatched
from taskharbor.model.job import JobRecord
from taskharbor.model.presence import WorkerInfo
from taskharbor.model.speculation import SPECULATE_HEADER, head_start, rule_of
from taskharbor.model.state import JobState
from taskharbor.scheduler.duty import Now

_CALM_FACTOR = 5.0

RunId = tuple[str, int]  # a job, and the fence of its claim


class SpeculateOnStragglers:
    """Copy the runs that take longer than max(after, factor × usual): each run once, however its copy ends.

    While no running job asks for it, a look around is taken five times less often.
    """

    name = "speculate"

    def __init__(
        self,
        driver: Driver,
        now: Now,
        *,
        every_seconds: float = 1.0,
        page: int = 500,
        events: EventBus | None = None,
    ) -> None:
        self._events = events or EventBus()
        self._driver = driver
        self._now = now
        self._page = page
        self._every_seconds = every_seconds
        self._is_wanted = True
        self._copied: set[RunId] = set()
        self._watched: set[tuple[str, str]] = set()  # queues and types

    @property
    def every_seconds(self) -> float:
        return self._every_seconds if self._is_wanted else self._every_seconds * _CALM_FACTOR

    async def run_once(self) -> int:
        now = await self._now.read()
        jobs = [job async for job in self._running() if SPECULATE_HEADER in job.headers][::-1]
        self._is_wanted = bool(jobs)
        self._watch(jobs)
        self._copied &= {_run_of(job) for job in jobs}
        fresh = [job for job in jobs if _run_of(job) not in self._copied]
        usual = await self._usual() if fresh else {}
        slow = [job for job in fresh if is_straggler(job, usual.get(job.type), now)]
        ranking = await self._driver.workers(now=self._now.given) if slow else []
        return sum([await self._copy(job, usual.get(job.type), ranking, now) for job in slow])

    def _watch(self, jobs: Sequence[JobRecord]) -> None:
        """Report each kind once, before its first copy: a counter must begin with 0 to show an increase."""
        for queue, type_ in sorted({(job.queue, job.type) for job in jobs} - self._watched):
            self._watched.add((queue, type_))
            self._events.emit(SpeculationWatched(type=type_, queue=queue))

    async def _running(self) -> AsyncIterator[JobRecord]:
        """Newest first: workers go on to newer jobs meanwhile, and a look that way would run after them."""
        query: Query | None = Query(
            states=(JobState.RUNNING,), limit=self._page, newest_first=True, payloads=False
        )
        while query is not None:
            page = await self._driver.find(query, now=self._now.given)
            for job in page.jobs:
                yield job
            query = replace(query, cursor=page.next_cursor) if page.next_cursor is not None else None

    async def _usual(self) -> dict[str, timedelta]:
        return {info.type: info.usual for info in await self._driver.types(now=self._now.given)}

    async def _copy(
        self, job: JobRecord, usual: timedelta | None, ranking: Sequence[WorkerInfo], now: datetime
    ) -> bool:
        start = head_start(job, ranking, threshold_of(job, usual))
        answer = await self._driver.speculate(job.id, head_start=start, now=self._now.given)
        self._copied.add(_run_of(job))  # so that it need not be asked again; the store remembers it too
        if isinstance(answer, Speculated):
            self._report(job, answer, now)
        return isinstance(answer, Speculated)

    def _report(self, job: JobRecord, answer: Speculated, now: datetime) -> None:
        ran = now - (job.started_at or now)
        self._events.emit(
            SpeculationStarted(
                job_id=job.id,
                copy_id=answer.copy_id,
                type=job.type,
                queue=job.queue,
                ran_seconds=ran.total_seconds(),
            )
        )


def _run_of(job: JobRecord) -> RunId:
    return job.id, job.fence


def is_straggler(job: JobRecord, usual: timedelta | None, now: datetime) -> bool:
    """Whether this run is so slow that a second one is worth it."""
    if rule_of(job.headers) is None or job.started_at is None or job.key is not None:
        return False
    return now - job.started_at > threshold_of(job, usual)


def threshold_of(job: JobRecord, usual: timedelta | None) -> timedelta:
    """How long a run of this job may take; for ever without a rule."""
    rule = rule_of(job.headers)
    return timedelta.max if rule is None else rule.threshold(usual)
