"""A cancel that was sent while nobody listened is sent again to each new listener."""

import asyncio

from taskharbor.drivers.messages import WakeupKind, Wakeups
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.testing.conformance.kit import OTHER_WORKER, QUEUE, WORKER, claim, new_jobs

SLOW = 30.0


async def cancelled_in(hints: Wakeups) -> str | None:
    """The job of the next hint of a cancel."""
    async with asyncio.timeout(SLOW):
        async for hint in hints:
            if hint.kind is WakeupKind.CANCEL:
                return hint.job_id
    return None


async def test_who_begins_to_listen_hears_of_the_cancels_of_its_own_jobs(driver: PostgresDriver) -> None:
    await driver.enqueue(new_jobs(2))
    [mine] = (await driver.reserve(claim(worker_id=WORKER))).jobs
    [theirs] = (await driver.reserve(claim(worker_id=OTHER_WORKER))).jobs
    await driver.cancel([theirs.id, mine.id])

    for worker_id, job in ((WORKER, mine), (OTHER_WORKER, theirs)):
        hints = driver.wakeups([QUEUE], worker_id)
        assert await cancelled_in(hints) == job.id
        await hints.aclose()
