"""Ready jobs that no live worker can claim: none serves their queue, lane or type."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query
from taskharbor.model.job import JobRecord
from taskharbor.model.presence import WorkerInfo, takes
from taskharbor.model.state import JobState

_MOST_PAGES = 10
Want = tuple[str, str, str]
"""What a job needs of a worker: queue, lane, type."""


async def unclaimed(
    driver: Driver,
    queue: str,
    workers: Sequence[WorkerInfo],
    *,
    before: datetime,
    page: int = 200,
    now: datetime | None = None,
) -> dict[Want, str]:
    """The unmet needs, each with one job that has it, among jobs that were ready at `before`.

    It looks at one page of ready jobs; many that ended before them do not hide them.
    """
    found: dict[Want, str] = {}
    for job in await _oldest_ready(driver, queue, page, now):
        wanted = {"queue": queue, "lane": job.requires, "type_name": job.type}
        if job.eligible_at <= before and not any(takes(worker.report, **wanted) for worker in workers):
            found.setdefault((queue, job.requires, job.type), job.id)
    return found


async def _oldest_ready(driver: Driver, queue: str, limit: int, now: datetime | None) -> list[JobRecord]:
    """The first page that has any: a store may look at jobs that ended, and return a page without jobs."""
    query = Query(queue=queue, states=(JobState.READY,), limit=limit, payloads=False)
    for _ in range(_MOST_PAGES):
        found = await driver.find(query, now=now)
        if found.jobs or found.next_cursor is None:
            return found.jobs
        query = replace(query, cursor=found.next_cursor)
    return []
