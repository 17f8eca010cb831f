"""A worker that starts while its store is away: it waits for a while, says so once, and can be stopped."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.drivers import connect
from taskharbor.drivers.relay import Relay
from taskharbor.errors import ConfigurationError, DriverUnavailable, StoreRefused
from taskharbor.model.job import NewJob
from taskharbor.testing.clock import SimulatedClock, turn_loop
from taskharbor.worker import Worker


class Booting(Relay):
    """A store that answers after so many tries, or says something else; or hangs."""

    def __init__(self, clock: SimulatedClock, tries: int = 1_000_000, error: Exception | None = None) -> None:
        super().__init__(connect("memory://", clock=clock))
        self.tries = tries
        self.opened = 0
        self.error = error or DriverUnavailable("nothing listens there", done=False)
        self.hangs = False

    async def do_open(self) -> None:
        self.opened += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.opened < self.tries:
            raise self.error
        await super().do_open()


def worker_on(driver: Booting, clock: SimulatedClock, **options: Any) -> Worker:
    worker = Worker(driver, clock=clock, **options)

    async def work(ctx, job):
        return None

    worker.register("work", work)
    return worker


async def passing(clock: SimulatedClock, task: asyncio.Task[Any], most: float = 100.0) -> float:
    """Move the clock until the task has ended; returns the seconds."""
    began = clock.monotonic()
    while not task.done() and clock.monotonic() - began < most:
        await turn_loop()
        if (at := clock.next_wake_at) is not None:
            clock.advance_to(at)
    await turn_loop()
    return clock.monotonic() - began


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="taskharbor")
    return lambda: [
        record.getMessage()
        for record in caplog.records
        if record.name == "taskharbor.store" and record.levelno >= logging.WARNING
    ]


async def test_it_begins_when_the_store_answers(clock, lines):
    driver = Booting(clock, tries=4)
    worker = worker_on(driver, clock)

    took = await passing(clock, task := asyncio.ensure_future(worker.arun(until_idle=True)))

    await task
    assert took < 5
    assert not driver.is_open
    gone, back = lines()
    assert "does not answer (open; tried for 30s): nothing listens there" in gone
    assert "answers again" in back


async def test_after_the_time_it_ends_with_the_error(clock, lines):
    driver = Booting(clock)

    task = asyncio.ensure_future(worker_on(driver, clock, store_wait="10s").arun())
    took = await passing(clock, task)

    with pytest.raises(DriverUnavailable, match="nothing listens there"):
        await task
    assert 7 < took <= 10
    assert driver.opened > 4
    assert len(lines()) == 1


async def test_with_no_time_to_wait_it_tries_once(clock, lines):
    driver = Booting(clock)

    with pytest.raises(DriverUnavailable):
        await worker_on(driver, clock, store_wait=timedelta(0)).arun()

    assert (driver.opened, lines()) == (1, [])


async def test_what_the_store_refuses_is_not_tried_again(clock):
    driver = Booting(clock, error=StoreRefused("wrong password"))

    with pytest.raises(StoreRefused):
        await worker_on(driver, clock).arun()

    assert driver.opened == 1


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_stop_ends_the_wait_at_once(clock, hangs):
    driver = Booting(clock)
    driver.hangs = hangs
    worker = worker_on(driver, clock)
    task = asyncio.ensure_future(worker.arun())
    await turn_loop()
    assert driver.opened == 1

    worker.stop()
    await asyncio.wait_for(task, 30)

    assert not driver.is_open
    driver.hangs, driver.tries = False, 0  # and it can be started again
    await worker.arun(until_idle=True)


async def test_a_worker_cannot_be_started_twice_while_it_waits(clock):
    worker = worker_on(Booting(clock), clock)
    task = asyncio.ensure_future(worker.arun())
    await turn_loop()

    with pytest.raises(ConfigurationError, match="already running"):
        await worker.arun()

    worker.stop()
    await asyncio.wait_for(task, 30)


async def test_schedules_are_stored_once_the_store_answers(clock):
    driver = Booting(clock, tries=3)
    harbor = Harbor(driver=driver, clock=clock)

    @harbor.cron("0 3 * * *")
    @harbor.task
    async def nightly() -> None:
        return None

    worker = harbor.worker()
    worker.driver = driver
    async with driver.inner.another() as looking:
        task = asyncio.ensure_future(worker.arun(until_idle=True))
        await passing(clock, task)
        await task

        assert [one.schedule.name for one in await looking.schedules(now=clock.now())] == ["nightly"]
    assert driver.opened == 3


async def test_jobs_run_when_it_has_come(clock):
    driver = Booting(clock, tries=2)
    await driver.inner.open()
    job_id = driver.entropy.job_id(clock.now())
    await driver.inner.enqueue([NewJob(id=job_id, type="work")], now=clock.now())
    worker = worker_on(driver, clock)

    await passing(clock, task := asyncio.ensure_future(worker.arun(until_idle=True)))
    await task

    assert worker.counts["finished"] == 1
