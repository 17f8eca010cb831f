"""Warn about ready jobs that no live worker can claim: none serves their queue, lane or task."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import QueueInfo
from taskharbor.drivers.unclaimed import Want, unclaimed
from taskharbor.model.presence import WorkerInfo
from taskharbor.model.queue import EVERY_QUEUE
from taskharbor.scheduler.duty import Now

_log = logging.getLogger("taskharbor.scheduler")


class WarnUnclaimed:
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
        self._warned: set[Want] = set()
        self.every_seconds = every_seconds

    async def run_once(self) -> int:
        now = await self._now.read()
        queues = await self._driver.queues(now=self._now.given)
        waiting = [queue for queue in queues if self._has_waited(queue, now)]
        workers = await self._driver.workers(now=self._now.given) if waiting else []
        found: dict[Want, str] = {}
        for queue in waiting:
            found |= await self._unclaimed(queue.queue, workers, now)
        for want in found.keys() - self._warned:
            _log.warning("%s", _words(want, found[want], has_workers=bool(workers)))
        self._warned = set(found)
        return len(found)

    def _has_waited(self, queue: QueueInfo, now: datetime) -> bool:
        oldest = queue.oldest_ready_at
        is_held = queue.queue == EVERY_QUEUE or queue.rules.paused or oldest is None
        return not is_held and now - (oldest or now) >= self._patience

    async def _unclaimed(self, queue: str, workers: Sequence[WorkerInfo], now: datetime) -> dict[Want, str]:
        return await unclaimed(
            self._driver, queue, workers, before=now - self._patience, page=self._page, now=self._now.given
        )


def _words(want: Want, job_id: str, *, has_workers: bool) -> str:
    queue, lane, type_name = want
    who = "no live worker takes" if has_workers else "no worker is alive to take"
    return f"{who} jobs of queue {queue}, lane {lane}, task {type_name}, and some wait (job {job_id} for one)"
