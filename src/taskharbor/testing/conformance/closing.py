"""N: before open, after close, and what close leaves alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.errors import DriverClosed, DriverError
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    LEASE,
    MICROSECOND,
    OTHER_WORKER,
    QUEUE,
    START,
    UNKNOWN_ID,
    WORKER,
    claim,
    enqueue_one,
    get_one,
    new_job,
    reserve,
    reserve_one,
    row,
    running,
    settle_one,
    unchanged,
)
from taskharbor.testing.conformance.verbs import EVERY_VERB

# Opening and closing themselves, and the verbs that are no coroutines: they have cases of their own.
APART = {
    "open",
    "close",
    "wakeups",
    "enqueue_blocking",
    "enqueue_in",
    "enqueue_on",
    "enqueue_family",
    "get_on",
    "transaction",
}


async def test_the_table_of_verbs_is_complete(driver: Driver) -> None:
    """N09: every verb that a driver writes is in it, so that none is forgotten below."""
    verbs = {name.removeprefix("do_") for name in dir(type(driver)) if name.startswith("do_")}

    assert verbs == APART | (verbs & set(EVERY_VERB))


async def test_a_closed_driver_does_nothing(driver: Driver) -> None:
    """N09 R001-18: before open and after close, every verb raises DriverClosed."""
    other = driver.another()

    for name, verb in EVERY_VERB.items():
        with row(f"{name} before open"), pytest.raises(DriverClosed):
            await verb(other)
    await other.open()
    await other.close()
    async with unchanged(driver):
        for name, verb in EVERY_VERB.items():
            with row(f"{name} after close"), pytest.raises(DriverClosed):
                await verb(other)


async def test_a_closed_driver_neither_listens_nor_blocks(driver: Driver) -> None:
    """N09: the verbs that are no coroutines say it at once."""
    other = await driver.another().open()
    await other.close()

    with pytest.raises(DriverClosed):
        other.wakeups((QUEUE,), WORKER)
    with pytest.raises(DriverClosed):
        other.enqueue_blocking([new_job()], now=START)


async def test_closed_comes_before_anything_else(driver: Driver) -> None:
    """N03: before a lease of no length, a bad name, a naive clock and an unknown job."""
    other = driver.another()

    with pytest.raises(DriverClosed):
        await other.reserve(claim(lease_for=timedelta(0), queues=("no name",)), now=START)
    with pytest.raises(DriverClosed):
        await other.extend_leases([], timedelta(0), now=START)
    with pytest.raises(DriverClosed):
        await other.enqueue([new_job(id="no id")], now=START.replace(tzinfo=None))
    with pytest.raises(DriverClosed):
        await other.get(["no id"], now=START)
    with pytest.raises(DriverClosed):
        await other.enqueue([], now=START)
    with pytest.raises(DriverClosed):
        await other.cancel([UNKNOWN_ID], now=START)


async def test_closing_twice_is_fine(driver: Driver) -> None:
    """N10: and so is closing what was never opened, and opening what is open."""
    other = driver.another()
    await other.close()

    assert await other.open() is other
    assert await other.open() is other
    await enqueue_one(other)
    await other.close()
    await other.close()

    with pytest.raises(DriverError):
        await other.get([UNKNOWN_ID], now=START)


async def test_closing_ends_no_lease(driver: Driver) -> None:
    """N11: the job stays with its holder until its time is over, and its token works through any handle."""
    async with driver.another() as other:
        job = await running(other)
    record = await get_one(driver, job.id)

    nothing = await reserve(driver, worker_id=OTHER_WORKER, now=START + LEASE - MICROSECOND)
    answer = await settle_one(driver, Ack(job.lease), now=START + LEASE - MICROSECOND)

    assert (record.state, record.lease_expires_at) == (JobState.RUNNING, START + LEASE)
    assert (nothing, answer.state) == ([], JobState.COMPLETED)


async def test_a_second_handle_sees_the_same_store(driver: Driver) -> None:
    """N11: what one enqueues the other reserves, and what one closes stays open for the other."""
    async with driver.another() as other:
        answer = await enqueue_one(driver)
        job = await reserve_one(other)
        await settle_one(driver, Ack(job.lease))

    assert job.id == answer.id
    assert (await get_one(driver, answer.id)).state is JobState.COMPLETED
