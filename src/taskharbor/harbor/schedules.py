"""Schedules: what the harbor's code declares with `@harbor.cron`, and what the store holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from taskharbor.client.client import Client
from taskharbor.client.handle import JobHandle
from taskharbor.drivers.contract import Driver
from taskharbor.errors import (
    ConfigurationError,
    DriverUnavailable,
    Forbidden,
    InvalidArgument,
    TaskHarborError,
)
from taskharbor.model.checks import check_name
from taskharbor.model.clock import Clock
from taskharbor.model.duration import optional_duration
from taskharbor.model.schedule import RENEW_EVERY, Schedule, StoredSchedule, ticks
from taskharbor.tasks.request import JobRequest

if TYPE_CHECKING:
    from taskharbor.harbor.keywords import RuleKeywords

Stored = list[StoredSchedule]
Instants = list[datetime]

_WAITING = "__taskharbor_schedules__"
_log = logging.getLogger("taskharbor.scheduler")


class Schedules:
    """The schedules of a harbor. What the code declares is stored before anything else is done."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._declared: dict[str, Schedule] = {}
        self._unstored: set[str] = set()
        self.incomplete: dict[Any, str] = {}
        """Functions with a rule of which no task was made yet."""

    @property
    def declared(self) -> tuple[Schedule, ...]:
        """What the code of this program declares, by name."""
        return tuple(self._declared[name] for name in sorted(self._declared))

    def declare(self, schedule: Schedule) -> None:
        """Note a schedule of the code; the store gets it with the first use, or by `store`."""
        there = self._declared.get(schedule.name)
        if there is not None and there != schedule:
            raise ConfigurationError(
                f"two schedules are named {schedule.name!r}; give one of them another name="
            )
        self._declared[schedule.name] = schedule
        self._unstored.add(schedule.name)

    def forget_stored(self) -> None:
        """The store is another one now: it knows nothing yet."""
        self._unstored = set(self._declared)

    def store(self) -> Stored:
        """Put what the code declares into the store. Pauses and ticks dealt with are kept."""
        return self._client._block(self.astore)

    async def astore(self) -> Stored:
        self._check()
        return await self._astore_on(await self._client.adriver())

    def _check(self) -> None:
        """Raises ConfigurationError for a schedule on something that is no task."""
        if self.incomplete:
            names = ", ".join(sorted(self.incomplete.values()))
            raise ConfigurationError(f"harbor.cron is on {names}, which is not a task: add @harbor.task")

    async def _astore_on(self, driver: Driver) -> Stored:
        """`astore` on a handle that is open: what a worker does when it starts."""
        owned = [msgspec.structs.replace(one, declared=True) for one in self.declared]
        done, refused = Stored(), None
        for one in owned:
            try:
                done.append(await driver.put_schedule(one, now=self._client._now()))
            except Forbidden as error:  # the others may be ours to store
                refused = refused or error
        self._unstored -= {one.schedule.name for one in done}
        if refused is not None:
            raise refused
        return done

    async def arenew(self, driver: Driver) -> int:
        """Renew the declarations of this program's schedules. Returns how many were due.

        A rule that was changed meanwhile stays, and one that was deleted stays deleted. This program may be
        an old one in the middle of a deployment.
        """
        now = self._client._now() or (await driver.info()).at
        stale = [
            entry.schedule.name
            for entry in await driver.schedules(now=self._client._now())
            if entry.declared_at is not None and now - entry.declared_at >= RENEW_EVERY / 2
        ]
        due = [self._declared[name] for name in stale if name in self._declared]
        for one in due:
            renewed = msgspec.structs.replace(one, declared=True, renews=True)
            after = await driver.put_schedule(renewed, now=self._client._now())
            if after.created_at == after.declared_at:  # it was deleted since we read it
                await driver.delete_schedule(one.name, now=self._client._now())
        return len(due)

    async def akeep(self, driver: Driver, clock: Clock) -> None:
        """Renew for as long as this program runs. For workers, schedulers and servers."""
        while self._declared:
            await clock.sleep(RENEW_EVERY.total_seconds())
            try:
                await self.arenew(driver)
            except TaskHarborError as error:
                if isinstance(error, DriverUnavailable):
                    driver.outage.failed("put_schedule", error)
                else:
                    _log.warning("could not renew the declared schedules: %s", error)

    @asynccontextmanager
    async def kept(self, driver: Driver, clock: Clock) -> AsyncIterator[None]:
        """The same, beside what is done within."""
        keeping = asyncio.ensure_future(self.akeep(driver, clock))
        try:
            yield
        finally:
            keeping.cancel()

    def put(self, name: str, request: JobRequest, **rule: Unpack[RuleKeywords]) -> StoredSchedule:
        """Store a schedule that no code declares: `put("nightly", task.call(30), cron="0 3 * * *")`.

        `rule` is cron or every, timezone, misfire and paused, as for `harbor.cron`. It stays until it is
        deleted, whatever programs run.
        """
        return self._client._block(self.aput, name, request, **rule)

    async def aput(self, name: str, request: JobRequest, **rule: Unpack[RuleKeywords]) -> StoredSchedule:
        template = msgspec.structs.replace(self._client._new_job(request), id="")
        try:
            given: dict[str, Any] = {**rule, "every": optional_duration(rule.get("every"), "every")}
            schedule = Schedule(name=name, template=template, **given)
        except TypeError as error:
            raise InvalidArgument(f"schedule {name!r}: {error}") from None
        return await (await self._client.adriver()).put_schedule(schedule, now=self._client._now())

    def next(self, name: str, count: int = 1) -> Instants:
        """When it fires next, the next `count` times; nothing while it is paused."""
        return self._client._block(self.anext, name, count)

    async def anext(self, name: str, count: int = 1) -> Instants:
        entry = await self._find(name)
        driver = await self._client.adriver()
        now = self._client._now() or (await driver.info()).at
        if entry.paused:
            return []
        coming = ticks(entry.schedule, max(now, entry.last_tick_at))
        return [*islice(coming, count)]

    def list(self) -> Stored:
        """Every schedule of the store, by name: also those that other programs declared."""
        return self._client._block(self.alist)

    async def alist(self) -> Stored:
        await self._store_new()
        return await (await self._client.adriver()).schedules(now=self._client._now())

    def pause(self, name: str) -> StoredSchedule:
        """Let it make no more jobs until it is resumed."""
        return self._client._block(self.apause, name)

    async def apause(self, name: str) -> StoredSchedule:
        return await self._set_paused(name, is_paused=True)

    def resume(self, name: str) -> StoredSchedule:
        """Let it make jobs again, from its next tick on; those in the pause are not made up for."""
        return self._client._block(self.aresume, name)

    async def aresume(self, name: str) -> StoredSchedule:
        return await self._set_paused(name, is_paused=False)

    def run(self, name: str) -> JobHandle[Any]:
        """Make its job now, besides its ticks, paused or not."""
        return self._client._block(self.arun, name)

    async def arun(self, name: str) -> JobHandle[Any]:
        template = (await self._find(name)).schedule.template
        return await self._client._aenqueue_job(msgspec.structs.replace(template, id=self._client._new_id()))

    def delete(self, name: str) -> bool:
        """Take it out of the store; was it there? Code that still declares it puts it back when it starts."""
        return self._client._block(self.adelete, name)

    async def adelete(self, name: str) -> bool:
        self._unstored.discard(name)
        return await (await self._client.adriver()).delete_schedule(name, now=self._client._now())

    async def _set_paused(self, name: str, *, is_paused: bool) -> StoredSchedule:
        schedule = (await self._find(name)).schedule
        driver = await self._client.adriver()
        return await driver.put_schedule(
            msgspec.structs.replace(schedule, paused=is_paused), now=self._client._now()
        )

    async def _find(self, name: str) -> StoredSchedule:
        check_name(name, "schedule name")
        found = await self.alist()
        for entry in found:
            if entry.schedule.name == name:
                return entry
        known = ", ".join(entry.schedule.name for entry in found) or "none"
        raise InvalidArgument(f"there is no schedule {name!r}; schedules are: {known}")

    async def _store_new(self) -> None:
        if self._unstored or self.incomplete:
            await self.astore()


def wait_for_task(function: Any, declare: Callable[[Any], Any], schedules: Schedules) -> Any:
    """`@harbor.cron` is below `@harbor.task`: keep the rule on the function until the task exists."""
    if not callable(function) or not hasattr(function, "__dict__"):
        raise ConfigurationError(f"harbor.cron goes on a task, not on {function!r:.80}")

    def once_made(task: Any) -> None:
        schedules.incomplete.pop(function, None)
        declare(task)

    schedules.incomplete[function] = getattr(function, "__qualname__", repr(function))
    function.__dict__.setdefault(_WAITING, []).append(once_made)
    return function


def waiting_declarations(function: Any) -> Sequence[Callable[[Any], None]]:
    """The rules that wait on a function of which a task is being made."""
    waiting: Sequence[Callable[[Any], None]] = getattr(function, "__dict__", {}).pop(_WAITING, ())
    return waiting
