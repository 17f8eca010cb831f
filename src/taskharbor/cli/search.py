"""Searches on the command line: the language of model/search.py, and pages of matching jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import msgspec

from taskharbor.cli.exit_codes import UsageError
from taskharbor.drivers import Driver
from taskharbor.drivers.messages import MAX_PAGE, Query
from taskharbor.model import search
from taskharbor.model.job import JobRecord
from taskharbor.model.search import Search, SearchError
from taskharbor.model.search_filter import Circumstances, matches
from taskharbor.views import payload_value

MOST_CALLS = 400
"""The most pages to read from the store for one page: a search for something rare must end."""
_MOST_MARKED = 200
_WITH_PAYLOADS = 100
"""Jobs per page if their payloads are needed, which may have a megabyte each."""


def parse_search(text: str | None) -> Search:
    """Parse a search.

    Raises:
        UsageError: it cannot be parsed; the message marks the place.
    """
    try:
        return search.parse_search(text or "")
    except SearchError as error:
        raise UsageError(f"{error}{_marked(text or '', error)}") from None


def _marked(text: str, error: SearchError) -> str:
    """The search with its wrong place underlined, if a terminal can show it on one line."""
    if not text.isprintable() or len(text) > _MOST_MARKED:
        return ""
    return f"\n  {text}\n  {' ' * error.at}{'^' * max(min(error.length, len(text) - error.at), 1)}"


class Finder:
    """Finds the jobs of a search in a store."""

    def __init__(
        self, driver: Driver, where: Search, facts: Circumstances, *, newest_first: bool = False
    ) -> None:
        self._driver = driver
        self._where = where
        self._facts = facts
        self._lookup = lookup = where.lookup()
        self._query = Query(
            queue=lookup.queue,
            states=lookup.states,
            type=lookup.type,
            key=lookup.key,
            worker_id=lookup.worker_id,
            failure_kind=lookup.failure_kind,
            newest_first=newest_first,
            payloads=where.needs_payloads,
        )

    async def page(self, limit: int, cursor: str | None) -> tuple[list[JobRecord], str | None]:
        """Some matching jobs among at most `limit` that are read, and where to go on."""
        if self._lookup.states == ():
            return [], None
        if self._lookup.ids is not None:
            found = await self._driver.get(list(self._lookup.ids), payloads=self._query.payloads)
            return self._fitting(job for job in found if job is not None), None
        most = _WITH_PAYLOADS if self._query.payloads else MAX_PAGE
        query = msgspec.structs.replace(self._query, limit=min(limit, most), cursor=cursor)
        page = await self._driver.find(query)
        return self._fitting(page.jobs), page.next_cursor

    def _fitting(self, jobs: Iterable[JobRecord]) -> list[JobRecord]:
        return [job for job in jobs if matches(self._where, job, self._facts)]


async def find_page(
    driver: Driver, where: Search, *, limit: int, cursor: str | None = None, newest_first: bool = False
) -> tuple[list[JobRecord], str | None]:
    """Up to `limit` matching jobs and the next cursor; short pages of the store are joined."""
    finder = Finder(driver, where, await _facts(driver, where), newest_first=newest_first)
    found: list[JobRecord] = []
    for _ in range(MOST_CALLS):
        jobs, cursor = await finder.page(limit - len(found), cursor)
        found += jobs
        if cursor is None or len(found) >= limit:
            break
    return found, cursor


async def find_all(driver: Driver, where: Search) -> AsyncIterator[list[JobRecord]]:
    """All matching jobs, page by page in enqueue order, each once even while they change."""
    finder = Finder(driver, where, await _facts(driver, where))
    cursor: str | None = None
    while True:
        jobs, cursor = await finder.page(MAX_PAGE, cursor)
        if jobs:
            yield jobs
        if cursor is None:
            return


async def _facts(driver: Driver, where: Search) -> Circumstances:
    """What the search needs to know; who may open the store may see every argument."""
    releases: dict[str, str] = {}
    if any(term.field == "release" for term in where.terms):
        releases = {worker.report.worker_id: worker.report.release for worker in await driver.workers()}
    return Circumstances(
        now=driver.clock.now(), arguments=lambda job: payload_value(job, reveal=True), releases=releases
    )
