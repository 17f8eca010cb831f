"""JobWalk: pages of jobs that fit a search, within a budget.

    ask the store for what it can look up ──► filter ──► page full, or all looked at, or budget used up?

A store has no index for most words of a search, so jobs are looked at one by one. A request looks at 20,000
jobs or for 250 ms, whichever ends first, and answers what it has found, how far it looked, and a cursor to
go on. Redis does everything in one thread: there, each call is followed by a pause of four times its length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta

import msgspec

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.cursor import check_query, cursor_after, fits, place_in
from taskharbor.drivers.messages import MAX_PAGE, Page, Query
from taskharbor.errors import InvalidArgument
from taskharbor.model.job import JobRecord
from taskharbor.model.search import Search
from taskharbor.model.search_filter import Circumstances, matches
from taskharbor.views import payload_value
from taskharbor.web.paging import not_ours, sealed, unsealed
from taskharbor.web.request import Request

WALK_SECONDS = 0.25
WALK_JOBS = 20_000
REDIS_PAUSE = 4
"""A search leaves a store with one thread alone for this many times as long as it used it."""
FIRST_LOOK = 200
"""Jobs that are read first if not all of them may fit; then a thousand at a time."""


class FoundJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that fit, and how far they were searched for."""

    jobs: list[JobRecord]
    cursor: str | None
    looked_at: int
    looked_back_to: datetime | None
    """When the last job that was looked at was enqueued (in a list by end: ended), if one is known."""

    @property
    def is_all(self) -> bool:
        return self.cursor is None


class Budget(msgspec.Struct):
    """How long one request may look for jobs, and at how many."""

    seconds: float
    jobs: int


class JobWalk:
    """A search by one caller: sees only queues of the caller, and finds nothing that is hidden from it."""

    def __init__(
        self,
        request: Request,
        search: Search,
        query: Query,
        *,
        also: Callable[[JobRecord], bool] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._request = request
        self._service = request.service
        self._principal = request.principal
        self._search = search
        self._lookup = search.lookup()
        self._also = also
        budget = budget or Budget(WALK_SECONDS, WALK_JOBS)
        self._left_jobs = budget.jobs
        self._ends_at = self._service.clock.monotonic() + budget.seconds
        self._query, self._is_possible = narrowed(query, search, self._service.clock.now())
        self._facts = Circumstances(now=self._service.clock.now())
        self._has_one_thread: bool | None = None
        self._took = 0.0
        """How long the last look took, if no pause has followed it."""
        self._last = 0.0
        self._is_filtered = bool(self._lookup.walked_in_server) or also is not None or self._hides_queues

    @property
    def is_spent(self) -> bool:
        """Whether this walk has looked long enough, or has no time for another look."""
        return self._left_jobs <= 0 or self._service.clock.monotonic() + self._last >= self._ends_at

    @property
    def _hides_queues(self) -> bool:
        return self._principal.queues is not None and self._query.queue is None

    async def page(self, limit: int, cursor: str | None) -> FoundJobs:
        """Up to `limit` jobs from a cursor of an earlier page on."""
        driver = await self._service.driver()
        self._facts = await self._facts_of(driver)
        if not self._is_possible:
            return FoundJobs(jobs=[], cursor=None, looked_at=0, looked_back_to=None)
        if self._lookup.ids is not None:
            return await self._by_ids(driver, self._lookup.ids)
        return await self._walk(driver, limit, unsealed(self._request, cursor))

    async def _by_ids(self, driver: Driver, ids: tuple[str, ...]) -> FoundJobs:
        found = await driver.get(list(ids), payloads=self._search.needs_payloads, now=self._service.now())
        jobs = [job for job in found if job is not None and fits(job, self._query)]
        return FoundJobs(jobs=self._fitting(jobs), cursor=None, looked_at=len(ids), looked_back_to=None)

    async def _walk(self, driver: Driver, limit: int, cursor: str | None) -> FoundJobs:
        found: list[JobRecord] = []
        looked_at, back_to = 0, None
        size = max(limit, FIRST_LOOK) if self._is_filtered else limit
        await self._rest(driver)
        while True:
            began = self._service.clock.monotonic()
            page = await self._ask(driver, size, cursor)
            self._took = self._last = self._service.clock.monotonic() - began
            self._left_jobs -= max(page.examined, len(page.jobs))
            looked_at += self._visible(page)
            back_to = self._instant(page.jobs[-1]) if page.jobs else back_to
            fitting, room = self._fitting(page.jobs), limit - len(found)
            found += fitting[:room]
            cursor = page.next_cursor
            if len(fitting) > room:  # the next page begins within this one
                cursor = cursor_after(self._query, place_in(self._query, found[-1]))
                break
            if cursor is None or len(found) == limit:
                break
            await self._rest(driver)
            if self.is_spent:
                break
            size = 5 * FIRST_LOOK if self._is_filtered else limit - len(found)
        return FoundJobs(
            jobs=found,
            cursor=sealed(self._request, cursor),
            looked_at=looked_at,
            looked_back_to=back_to,
        )

    def _visible(self, page: Page) -> int:
        """Jobs that were looked at; a caller for some queues learns nothing about the others."""
        if self._principal.queues is None:
            return max(page.examined, len(page.jobs))
        return sum(self._principal.may_use(job.queue) for job in page.jobs)

    def _instant(self, job: JobRecord) -> datetime | None:
        return job.finished_at if self._query.order_by == "ended" else job.created_at

    async def _ask(self, driver: Driver, size: int, cursor: str | None) -> Page:
        query = msgspec.structs.replace(self._query, limit=min(size, MAX_PAGE), cursor=cursor)
        try:
            return await self._service.answer_limit.find(driver, query, now=self._service.now())
        except InvalidArgument:
            if query.cursor is None:
                raise
            # The rest of the query was checked when it was parsed, so the cursor is of another listing.
            plain = msgspec.structs.replace(query, cursor=None, limit=1, payloads=False)
            await driver.find(plain, now=self._service.now())
            raise not_ours() from None

    async def _rest(self, driver: Driver) -> None:
        took, self._took = self._took, 0.0
        if not took:
            return
        if self._has_one_thread is None:
            self._has_one_thread = "redis" in (await driver.info()).driver
        if self._has_one_thread:
            await self._service.pause(REDIS_PAUSE * took)

    # ------------------------------------------------------------------ the filter

    def _fitting(self, jobs: Iterable[JobRecord]) -> list[JobRecord]:
        """Jobs that fit, without what they carry: ten thousand may be kept, and each may have megabytes."""
        found = [
            job
            for job in jobs
            if self._principal.may_use(job.queue)
            and (self._also is None or self._also(job))
            and matches(self._search, job, self._facts)
        ]
        if not self._search.needs_payloads:
            return found
        return [msgspec.structs.replace(job, payload=b"", result=None) for job in found]

    async def _facts_of(self, driver: Driver) -> Circumstances:
        releases: dict[str, str] = {}
        if any(term.field == "release" for term in self._search.terms):
            releases = {
                worker.report.worker_id: worker.report.release
                for worker in await driver.workers(now=self._service.now())
            }
        reveal = self._principal.sees_payloads
        return Circumstances(
            now=self._service.clock.now(),
            arguments=lambda job: payload_value(job, reveal=reveal),
            releases=releases,
        )


def narrowed(query: Query, search: Search, now: datetime) -> tuple[Query, bool]:
    """The query with what a store can do of a search, and whether any job can match it.

    The bound of `ended` is an hour or two too early, as a cursor belongs to one query; `matches` is exact.
    """
    lookup = search.lookup()
    names = ("queue", "states", "type", "key", "worker_id", "failure_kind")
    added = {
        name: getattr(lookup, name)
        for name in names
        if getattr(query, name) is None and getattr(lookup, name) is not None
    }
    if query.states is not None and lookup.states is not None:
        added["states"] = tuple(state for state in query.states if state in lookup.states)
    if query.order_by == "ended" and lookup.ended_within_s is not None:
        with suppress(OverflowError):
            since = now - timedelta(seconds=lookup.ended_within_s)
            added["ended_after"] = since.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    found = msgspec.structs.replace(query, payloads=search.needs_payloads, **added)
    check_query(msgspec.structs.replace(query, cursor=None))
    try:
        check_query(msgspec.structs.replace(found, cursor=None))
    except InvalidArgument:  # no state is left, or a word of the search is no name that a job can have
        return query, False
    return found, True
