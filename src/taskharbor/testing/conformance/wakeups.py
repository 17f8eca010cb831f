"""Wake-ups: hints that there is work, and that a running job was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Wakeup, WakeupKind, Wakeups
from taskharbor.errors import DriverClosed, InvalidArgument
from taskharbor.testing.conformance.kit import (
    HOUR,
    OTHER_QUEUE,
    QUEUE,
    START,
    WORKER,
    enqueue_one,
    new_jobs,
    requires,
    running,
)

PATIENCE = 30.0
"""Seconds to wait for an event that is on its way; none of them should take one."""


@asynccontextmanager
async def listening(driver: Driver, *queues: str, worker_id: str = WORKER) -> AsyncIterator[Wakeups]:
    requires(driver, "wakeups")
    wakeups = driver.wakeups(queues or (QUEUE,), worker_id)
    try:
        yield wakeups
    finally:
        await wakeups.aclose()


async def hint(wakeups: Wakeups, fits: Callable[[Wakeup], bool]) -> Wakeup:
    """The next hint that fits; others may come before it, for hints may be wrong."""
    async with asyncio.timeout(PATIENCE):
        async for wakeup in wakeups:
            if fits(wakeup):
                return wakeup
    raise AssertionError("the hints ended")


def work_in(queue: str) -> Callable[[Wakeup], bool]:
    # A hint without a queue means any of those that are listened to.
    return lambda wakeup: wakeup.kind is WakeupKind.WORK and wakeup.queue in (queue, None)


async def test_an_enqueue_is_hinted_to_a_waiting_worker(driver: Driver) -> None:
    """A22: one that was already waiting when the job came."""
    async with listening(driver) as wakeups:
        waiting = asyncio.ensure_future(hint(wakeups, work_in(QUEUE)))
        await asyncio.wait([waiting], timeout=0)
        await enqueue_one(driver)

        assert (await waiting).kind is WakeupKind.WORK


async def test_a_job_that_came_between_listening_and_waiting_is_hinted(driver: Driver) -> None:
    """A22: it listens from the moment it is made."""
    async with listening(driver) as wakeups:
        await driver.enqueue(new_jobs(3), now=START)

        await hint(wakeups, work_in(QUEUE))


async def test_every_queue_that_is_listened_to_is_hinted(driver: Driver) -> None:
    """A22: each by its name."""
    async with listening(driver, QUEUE, OTHER_QUEUE) as wakeups:
        await enqueue_one(driver, queue=OTHER_QUEUE)
        await hint(wakeups, work_in(OTHER_QUEUE))
        await enqueue_one(driver)
        await hint(wakeups, work_in(QUEUE))


async def test_an_enqueue_of_another_handle_is_hinted(driver: Driver) -> None:
    """A22: clients and workers are seldom the same handle."""
    async with driver.another() as client, listening(driver) as wakeups:
        await enqueue_one(client)

        await hint(wakeups, work_in(QUEUE))


async def test_two_workers_are_both_hinted(driver: Driver) -> None:
    """A22: a wake-up is not a job; the first to claim gets it."""
    async with listening(driver) as first, listening(driver, worker_id="worker-b") as second:
        await enqueue_one(driver)

        await hint(first, work_in(QUEUE))
        await hint(second, work_in(QUEUE))


async def test_a_cancel_is_hinted_to_the_worker_that_runs_the_job(driver: Driver) -> None:
    """H04 R003-24: regardless of who cancels, and of the queues it listens to."""
    job = await running(driver, lease_for=HOUR)
    async with driver.another() as client, listening(driver, OTHER_QUEUE) as wakeups:
        await client.cancel([job.id], now=START)

        wakeup = await hint(wakeups, lambda wakeup: wakeup.kind is WakeupKind.CANCEL)

    assert wakeup.job_id == job.id


async def test_a_ring_is_hinted_to_the_workers_of_its_queues(driver: Driver) -> None:
    """A22: after a commit that the store did not see; from any handle, and nothing is stored."""
    async with driver.another() as client, listening(driver) as wakeups:
        await client.ring([OTHER_QUEUE, QUEUE])

        await hint(wakeups, work_in(QUEUE))
    assert await driver.count(now=START) == {}


async def test_a_ring_that_nobody_waits_for_is_fine(driver: Driver) -> None:
    """A22: on a store without wake-ups, too; a wrong name is refused."""
    await driver.ring([])
    await driver.ring([QUEUE])

    with pytest.raises(InvalidArgument):
        await driver.ring([QUEUE, "a b"])


async def test_closing_stops_the_listening_and_nothing_else(driver: Driver) -> None:
    """V08: twice is fine, the driver stays open, and another listener is not disturbed."""
    async with listening(driver) as kept:
        async with listening(driver) as wakeups:
            await wakeups.aclose()
        await enqueue_one(driver)

        await hint(kept, work_in(QUEUE))


async def test_wakeups_are_there_exactly_when_they_are_declared(driver: Driver) -> None:
    """V11: a store without them says so at once."""
    if driver.capabilities.wakeups:
        await driver.wakeups((QUEUE,), WORKER).aclose()
    else:
        with pytest.raises(InvalidArgument):
            driver.wakeups((QUEUE,), WORKER)


async def test_listening_needs_an_open_driver_and_good_names(driver: Driver) -> None:
    """N09 N15: refused before anything is set up."""
    with pytest.raises(InvalidArgument):
        driver.wakeups(("a b",), WORKER)
    with pytest.raises(InvalidArgument):
        driver.wakeups((QUEUE,), "")
    with pytest.raises(DriverClosed):
        driver.another().wakeups((QUEUE,), WORKER)
