"""Ready jobs that no live worker can claim: none serves their queue, lane or type."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query
from taskharbor.model.presence import WorkerInfo, takes
from taskharbor.model.state import JobState

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
    """The unmet needs, each with one job that has it, among jobs that were ready at `before`."""
    query = Query(queue=queue, states=(JobState.READY,), limit=page, payloads=False)
    found: dict[Want, str] = {}
    for job in (await driver.find(query, now=now)).jobs:
        wanted = {"queue": queue, "lane": job.requires, "type_name": job.type}
        if job.eligible_at <= before and not any(takes(worker.report, **wanted) for worker in workers):
            found.setdefault((queue, job.requires, job.type), job.id)
    return found
