"""Say aloud that jobs wait for a worker that does not exist: nobody alive takes their queue, lane or type."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query, QueueInfo
from taskharbor.model.presence import WorkerInfo, takes
from taskharbor.model.queue import EVERY_QUEUE
from taskharbor.model.state import JobState
from taskharbor.scheduler.duty import Now

_log = logging.getLogger("taskharbor.scheduler")

Want = tuple[str, str, str]  # queue, lane, type


class NoticeUnclaimed:
    """Warn of ready jobs that no live worker would claim, once for each kind of them.

    Looks at the first page of each queue, so that its work is bounded; a job further back is found when
    those before it are gone, and by `why` at any time.
    """

    name = "notice-unclaimed"

    def __init__(
        self,
        driver: Driver,
        now: Now,
        *,
        every_seconds: float = 30.0,
        patience: timedelta = timedelta(seconds=30),
        page: int = 200,
    ) -> None:
        self._driver = driver
        self._now = now
        self._patience = patience
        self._page = page
        self._told: set[Want] = set()
        self.every_seconds = every_seconds

    async def run_once(self) -> int:
        now = await self._now.read()
        queues = await self._driver.queues(now=self._now.given)
        waiting = [queue for queue in queues if self._has_waited(queue, now)]
        workers = await self._driver.workers(now=self._now.given) if waiting else []
        found: dict[Want, str] = {}
        for queue in waiting:
            found |= await self._unclaimed(queue.queue, workers, now)
        for want in found.keys() - self._told:
            _log.warning("%s", _words(want, found[want], has_workers=bool(workers)))
        self._told = set(found)
        return len(found)

    def _has_waited(self, queue: QueueInfo, now: datetime) -> bool:
        oldest = queue.oldest_ready_at
        is_held = queue.queue == EVERY_QUEUE or queue.rules.paused or oldest is None
        return not is_held and now - (oldest or now) >= self._patience

    async def _unclaimed(self, queue: str, workers: Sequence[WorkerInfo], now: datetime) -> dict[Want, str]:
        """What is wanted and not there, each with a job that wants it."""
        query = Query(queue=queue, states=(JobState.READY,), limit=self._page)
        page = await self._driver.find(query, now=self._now.given)
        found: dict[Want, str] = {}
        for job in page.jobs:
            wanted = {"queue": queue, "lane": job.requires, "type_name": job.type}
            is_old = now - job.eligible_at >= self._patience
            if is_old and not any(takes(worker.report, **wanted) for worker in workers):
                found.setdefault((queue, job.requires, job.type), job.id)
        return found


def _words(want: Want, job_id: str, *, has_workers: bool) -> str:
    queue, lane, type_name = want
    who = "no live worker takes" if has_workers else "no worker is alive to take"
    return f"{who} jobs of queue {queue}, lane {lane}, type {type_name}, and some wait (job {job_id} for one)"
