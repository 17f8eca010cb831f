"""The plain duties: reclaim expired jobs, make due jobs ready, delete old ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.family_ends import ended_in, report_ended
from taskharbor.drivers.given_up import report_given_up
from taskharbor.drivers.messages import given_up_in
from taskharbor.events import EventBus
from taskharbor.scheduler.duty import Duty, Now

FOUND_BY = "the sweep"


class Batches:
    """A verb that deals with a batch per call, called until a batch comes back short.

    Without the further pages, entries behind a full first page would wait for ever.
    """

    def __init__(
        self, name: str, verb: Callable[[int], Awaitable[int]], *, every_seconds: float, batch: int
    ) -> None:
        self.name = name
        self.every_seconds = every_seconds
        self._verb = verb
        self._batch = batch

    async def run_once(self) -> int:
        done = 0
        while True:
            count = await self._verb(self._batch)
            done += count
            if count < self._batch:
                return done


def sweep(
    driver: Driver,
    now: Now,
    *,
    every_seconds: float = 2.0,
    batch: int = 100,
    events: EventBus | None = None,
) -> Duty:
    """Return jobs whose lease ran out to their queue, or fail them, and report it."""
    bus = events or EventBus()

    async def reclaim(limit: int) -> int:
        answers = await driver.reclaim(limit, now=now.given)
        report_given_up(given_up_in(answers), bus, found_by=FOUND_BY)
        report_ended(ended_in(answers), bus)
        return len(answers)

    return Batches("sweep", reclaim, every_seconds=every_seconds, batch=batch)


def promote(
    driver: Driver,
    now: Now,
    *,
    every_seconds: float = 2.0,
    batch: int = 1000,
    events: EventBus | None = None,
) -> Duty:
    """Make due jobs ready, so that a claim finds them sorted; end what missed its deadline, and report it."""
    bus = events or EventBus()

    async def move(limit: int) -> int:
        answer = await driver.promote(limit, now=now.given)
        report_ended(answer.ended, bus)
        return answer.count

    return Batches("promote", move, every_seconds=every_seconds, batch=batch)


def prune(driver: Driver, now: Now, *, every_seconds: float = 30.0, batch: int = 1000) -> Duty:
    """Forget finished jobs whose retention is over."""

    async def forget(limit: int) -> int:
        return await driver.prune(limit, now=now.given)

    return Batches("prune", forget, every_seconds=every_seconds, batch=batch)
