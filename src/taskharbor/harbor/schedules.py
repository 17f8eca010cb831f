"""Schedules: what the harbor's code declares with `@harbor.cron`, and what the store holds."""

from __future__ import annotations

from typing import Any

import msgspec

from taskharbor.client.client import Client
from taskharbor.client.handle import JobHandle
from taskharbor.errors import ConfigurationError, InvalidArgument
from taskharbor.model.checks import check_name
from taskharbor.model.schedule import Schedule, StoredSchedule

Stored = list[StoredSchedule]


class Schedules:
    """The schedules of a harbor. What the code declares is stored before anything else is done."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._declared: dict[str, Schedule] = {}
        self._unstored: set[str] = set()

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
        return self._client.block(self.astore)

    async def astore(self) -> Stored:
        driver = await self._client.adriver()
        done = [await driver.put_schedule(one, now=self._client.now()) for one in self.declared]
        self._unstored -= {one.schedule.name for one in done}
        return done

    def list(self) -> Stored:
        """Every schedule of the store, by name: also those that other programs declared."""
        return self._client.block(self.alist)

    async def alist(self) -> Stored:
        await self._store_new()
        return await (await self._client.adriver()).schedules(now=self._client.now())

    def pause(self, name: str) -> StoredSchedule:
        """Let it make no more jobs until it is resumed."""
        return self._client.block(self.apause, name)

    async def apause(self, name: str) -> StoredSchedule:
        return await self._set_paused(name, is_paused=True)

    def resume(self, name: str) -> StoredSchedule:
        """Let it make jobs again, from its next tick on; those in the pause are not made up for."""
        return self._client.block(self.aresume, name)

    async def aresume(self, name: str) -> StoredSchedule:
        return await self._set_paused(name, is_paused=False)

    def run(self, name: str) -> JobHandle[Any]:
        """Make its job now, besides its ticks, paused or not."""
        return self._client.block(self.arun, name)

    async def arun(self, name: str) -> JobHandle[Any]:
        template = (await self._find(name)).schedule.template
        return await self._client.aenqueue_job(msgspec.structs.replace(template, id=self._client.new_id()))

    def delete(self, name: str) -> bool:
        """Take it out of the store; was it there? Code that still declares it puts it back when it starts."""
        return self._client.block(self.adelete, name)

    async def adelete(self, name: str) -> bool:
        self._unstored.discard(name)
        return await (await self._client.adriver()).delete_schedule(name, now=self._client.now())

    async def _set_paused(self, name: str, *, is_paused: bool) -> StoredSchedule:
        schedule = (await self._find(name)).schedule
        driver = await self._client.adriver()
        return await driver.put_schedule(
            msgspec.structs.replace(schedule, paused=is_paused), now=self._client.now()
        )

    async def _find(self, name: str) -> StoredSchedule:
        check_name(name, "schedule name")
        found = await self.alist()
        for entry in found:
            if entry.schedule.name == name:
                return entry
        known = ", ".join(entry.schedule.name for entry in found) or "none"
        raise InvalidArgument(f"no schedule is named {name!r}; there are: {known}")

    async def _store_new(self) -> None:
        if self._unstored:
            await self.astore()
