"""Schedules become jobs: exactly one per tick, whoever leads and however often it is tried.

Each tick is enqueued under an idempotency key of its own. A leader that dies between the enqueue and
the note that the tick was dealt with leaves a tick that the next leader tries again, and the store
answers `duplicate`.
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.schedule import StoredSchedule, due_ticks, last_tick, tick_key
from taskharbor.scheduler.duty import Now

SCHEDULE_HEADER = "taskharbor-schedule"


class FireCron:
    """Enqueue the job of every schedule whose tick has come."""

    name = "fire-cron"

    def __init__(self, driver: Driver, now: Now, entropy: Entropy, *, every_seconds: float = 1.0) -> None:
        self._driver = driver
        self._now = now
        self._entropy = entropy
        self.every_seconds = every_seconds

    async def run_once(self) -> int:
        entries = await self._driver.schedules(now=self._now.given)
        if not entries:
            return 0
        now = await self._now.read()
        return sum([await self._fire(entry, now) for entry in entries])

    async def _fire(self, entry: StoredSchedule, now: datetime) -> int:
        reached = last_tick(entry, now)
        if reached is None:
            return 0
        jobs = [self._job(entry, tick, now) for tick in due_ticks(entry, now)]
        if jobs:
            await self._driver.enqueue(jobs, now=self._now.given)
        await self._driver.advance_schedule(entry.schedule.name, reached, now=self._now.given)
        return len(jobs)

    def _job(self, entry: StoredSchedule, tick: datetime, now: datetime) -> NewJob:
        name, template = entry.schedule.name, entry.schedule.template
        return replace(
            template,
            id=self._entropy.job_id(now),
            idempotency_key=tick_key(name, tick),
            headers={**template.headers, SCHEDULE_HEADER: name},
        )
