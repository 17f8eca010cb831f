"""Schedules become jobs: exactly one per tick, whichever scheduler leads and however often it tries.

Each tick is enqueued under an idempotency key of its own. A leader that dies between the enqueue and
the update of the schedule leaves a tick that the next leader tries again, and the store answers `duplicate`.
"""

from __future__ import annotations

import logging
from datetime import datetime

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import EnqueueResult
from taskharbor.errors import DriverUnavailable, InvalidArgument, RateLimited, TaskHarborError
from taskharbor.events import EventBus, ScheduleFailed, ScheduleFired
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.log_cells import Fire, packed
from taskharbor.model.logbook import FIRES, KEPT, MAX_ENTRIES, LogEntry
from taskharbor.model.schedule import (
    StoredSchedule,
    due_ticks,
    is_undeclared,
    last_tick,
    made_by,
    tick_key,
)
from taskharbor.scheduler.duty import Now

_log = logging.getLogger("taskharbor.scheduler")


class FireCron:
    """Enqueue the job of every schedule whose tick has come."""

    name = "fire-cron"

    def __init__(
        self,
        driver: Driver,
        now: Now,
        entropy: Entropy,
        *,
        every_seconds: float = 1.0,
        events: EventBus | None = None,
    ) -> None:
        self._events = events or EventBus()
        self._driver = driver
        self._now = now
        self._entropy = entropy
        self.every_seconds = every_seconds
        self._troubles: dict[str, str] = {}  # by schedule: logged once, not every second
        self._held: set[str] = set()  # schedules whose code is gone, logged once as well

    async def run_once(self) -> int:
        entries = await self._driver.schedules(now=self._now.given)
        if not entries:
            return 0
        now = await self._now.read()
        return sum([await self._fire_alone(entry, now) for entry in entries])

    async def _fire_alone(self, entry: StoredSchedule, now: datetime) -> int:
        """One schedule that cannot fire, whatever the reason, does not hold up the others."""
        name = entry.schedule.name
        try:
            return await self._fire(entry, now)
        except DriverUnavailable:
            raise  # the others would fare no better
        except Exception as error:  # noqa: BLE001 - one unreadable row must not stop the others
            why = str(error) or type(error).__name__
            level = logging.DEBUG if self._troubles.get(name) == why else logging.WARNING
            self._troubles[name] = why
            self._events.emit(ScheduleFailed(schedule=name, error=why))
            _log.log(level, "schedule %s could not fire and will be tried again: %s", name, why)
            return 0

    async def _fire(self, entry: StoredSchedule, now: datetime) -> int:
        if is_undeclared(entry, now):
            return self._hold(entry)
        self._held.discard(entry.schedule.name)
        reached = last_tick(entry, now)
        if reached is None:
            return 0
        due = due_ticks(entry, now)
        fired = await self._enqueue_all(entry, due, now)
        if fired == len(due):
            await self._driver.advance_schedule(
                entry.schedule.name, reached, fired=bool(due), now=self._now.given
            )
            self._troubles.pop(entry.schedule.name, None)
        return fired

    def _hold(self, entry: StoredSchedule) -> int:
        """Its ticks are neither fired nor dealt with: code that declares it again goes on where it was."""
        name = entry.schedule.name
        if name not in self._held:
            self._held.add(name)
            _log.warning(
                "schedule %s makes no more jobs: no program has declared it since %s, although it comes from "
                "code; `taskharbor schedules delete %s` deletes it",
                name,
                entry.declared_at,
                name,
            )
        return 0

    async def _enqueue_all(self, entry: StoredSchedule, due: list[datetime], now: datetime) -> int:
        """All at once, or one tick after the other as far as the budget of the queue goes."""
        jobs = [self._job(entry, tick, now) for tick in due]
        if not jobs:
            return 0
        try:
            await self._enqueue(entry, due, jobs)
        except (RateLimited, InvalidArgument):  # over the budget now, or in one call for ever
            if len(jobs) == 1:
                raise
        else:
            return len(jobs)
        for done, (tick, job) in enumerate(zip(due, jobs, strict=True)):
            try:
                await self._enqueue(entry, [tick], [job])
            except RateLimited:
                if not done:
                    raise
                return done
            await self._driver.advance_schedule(entry.schedule.name, tick, now=self._now.given)
        return len(jobs)

    async def _enqueue(self, entry: StoredSchedule, due: list[datetime], jobs: list[NewJob]) -> None:
        answers = await self._driver.enqueue(jobs, now=self._now.given)
        for tick, answer in zip(due, answers, strict=True):
            if answer.result is not EnqueueResult.DUPLICATE:  # else another leader was first
                self._events.emit(ScheduleFired(schedule=entry.schedule.name, tick=tick, job_id=answer.id))
        await self._note(
            entry.schedule.name, [(tick, one.id) for tick, one in zip(due, answers, strict=True)]
        )

    async def _note(self, name: str, fires: list[tuple[datetime, str]]) -> None:
        """Write the fires to the logbook; also those of a leader that died before it could. Never fails."""
        if not self._driver.capabilities.logbook:
            return
        entries = [
            LogEntry(book=FIRES, at=tick, by=name, data=packed([Fire(job_id)]), until=tick + KEPT[FIRES])
            for tick, job_id in fires[-MAX_ENTRIES:]
        ]
        try:
            await self._driver.write_log(entries, now=self._now.given)
        except TaskHarborError as error:
            _log.debug("the fires of schedule %s are not in the logbook: %s", name, error)

    def _job(self, entry: StoredSchedule, tick: datetime, now: datetime) -> NewJob:
        return replace(
            entry.schedule.template,
            id=self._entropy.job_id(now),
            idempotency_key=tick_key(entry.schedule.name, tick),
            headers=made_by(entry.schedule),
        )
