"""Counts: what tallies alone do not know, and is right all the same: copies, and a clock that went back."""

from datetime import timedelta

from taskharbor.drivers.messages import Counts, Speculated
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.testing.conformance.kit import OTHER_QUEUE, QUEUE, START, claim, new_job, new_jobs

SECOND = timedelta(seconds=1)


async def test_a_job_that_was_enqueued_after_now_is_ready(driver: PostgresDriver) -> None:
    """The clock of a server that took over may be behind the last one's."""
    await driver.enqueue([new_job(), new_job(delay=SECOND)], now=START)

    counts = await driver.count(now=START - SECOND)
    [info] = await driver.queues(now=START - SECOND)

    assert counts == {QUEUE: Counts(ready=1, scheduled=1)}
    assert info.oldest_ready_at == START


async def test_a_copy_is_not_counted_beside_jobs_that_wait(driver: PostgresDriver) -> None:
    [original] = await driver.enqueue([new_job()], now=START)
    await driver.reserve(claim(), now=START)
    assert isinstance(await driver.speculate(original.id, now=START), Speculated)
    await driver.enqueue(
        [*new_jobs(3), new_job(delay=SECOND), new_job(queue=OTHER_QUEUE)], now=START + SECOND / 2
    )

    counts = await driver.count(now=START + SECOND)
    infos = {info.queue: info for info in await driver.queues(now=START + SECOND)}

    assert counts == {QUEUE: Counts(ready=3, running=1, scheduled=1), OTHER_QUEUE: Counts(ready=1)}
    assert infos[QUEUE].oldest_ready_at == START + SECOND / 2
