"""B: a claim of many queues finds what is in any of them, whatever brought it there."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim
from taskharbor.model.job import JobRecord
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack, Release, Retry
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MINUTE,
    SECOND,
    START,
    claim,
    either_clock,
    enqueue,
    enqueue_one,
    new_job,
)

QUEUES = tuple(f"kit-{number}" for number in range(40))
LAST = QUEUES[-1]


async def taken(driver: Driver, *, now: datetime | None = START, **fields: object) -> list[JobRecord]:
    wanted: Claim = claim(**({"queues": QUEUES, "limit": 10} | fields))  # type: ignore[arg-type]
    return (await driver.reserve(wanted, now=now)).jobs


@either_clock
async def test_one_job_in_many_queues_is_found_again_and_again(driver: Driver, now: datetime | None) -> None:
    """B20: with claims in between that find nothing."""
    for queue in (LAST, QUEUES[3], LAST):
        assert await taken(driver, now=now) == []
        job_id = (await enqueue_one(driver, queue=queue, now=now)).id
        [job] = await taken(driver, now=now)
        assert (job.id, job.queue) == (job_id, queue)
        await driver.settle([Ack(job.lease)], now=now)


async def test_many_queues_keep_their_order(driver: Driver) -> None:
    """B20: the order of the claim, not that of names or enqueues."""
    await enqueue(driver, *(new_job(queue=queue) for queue in ("kit-4", "kit-20", "kit-1", "kit-20")))
    order = tuple(reversed(QUEUES))

    jobs = await taken(driver, queues=order)

    assert [job.queue for job in jobs] == ["kit-20", "kit-20", "kit-4", "kit-1"]


async def test_other_queues_are_left_alone_by_a_claim_of_many(driver: Driver) -> None:
    """B23: also those whose names begin or end alike."""
    await enqueue(driver, *(new_job(queue=queue) for queue in ("kit", "kit-2x", "xkit-2", "it-2", "kit-40")))

    assert await taken(driver) == []


@pytest.mark.parametrize("others", [0, 300])
async def test_a_scheduled_job_in_one_of_many_queues_is_found_when_it_is_due(
    driver: Driver, others: int
) -> None:
    """B20: one of them is scheduled while claims find nothing; there may be many other queues with jobs."""
    await enqueue(driver, *(new_job(queue=f"other-{number}") for number in range(others)))
    assert await taken(driver) == []
    await enqueue_one(driver, queue=LAST, run_at=START + HOUR)
    assert await taken(driver) == []
    await enqueue_one(driver, queue=LAST, run_at=START + MINUTE)
    assert await taken(driver) == []

    [first] = await taken(driver, now=START + MINUTE, lease_for=2 * HOUR)
    assert await taken(driver, now=START + HOUR - SECOND) == []
    [second] = await taken(driver, now=START + HOUR)

    assert (first.run_at, second.run_at) == (START + MINUTE, START + HOUR)


@pytest.mark.parametrize("others", [0, 300])
async def test_an_expired_lease_in_one_of_many_queues_is_found(driver: Driver, others: int) -> None:
    """B20: of a claim of one queue, and of a claim of many; claims in between find nothing."""
    await enqueue(driver, *(new_job(queue=f"other-{number}") for number in range(others)))
    job_id = (await enqueue_one(driver, queue=LAST)).id
    [_] = await taken(driver, queues=(LAST,))
    for round_ in (1, 2):
        before = START + round_ * LEASE - SECOND
        assert await taken(driver, now=before) == []
        assert await taken(driver, now=before) == []
        [job] = await taken(driver, now=START + round_ * LEASE)
        assert (job.id, job.stalls) == (job_id, round_)


async def test_a_lease_that_was_made_shorter_is_found_in_one_of_many_queues(driver: Driver) -> None:
    """B20: it ends earlier than a claim in between has seen."""
    await enqueue_one(driver, queue=LAST)
    [job] = await taken(driver, lease_for=HOUR)
    assert await taken(driver) == []
    assert await taken(driver) == []
    await driver.extend_leases([job.lease], SECOND, now=START)

    [again] = await taken(driver, now=START + SECOND)

    assert again.id == job.id


@pytest.mark.parametrize("delay", [None, MINUTE], ids=["at once", "later"])
@pytest.mark.parametrize("settlement", [Retry, Release])
async def test_a_job_that_waits_again_is_found_in_one_of_many_queues(
    driver: Driver, settlement: type[Retry | Release], delay: timedelta | None
) -> None:
    """B20: claims in between have found its queue empty."""
    await enqueue_one(driver, queue=LAST)
    [job] = await taken(driver, lease_for=HOUR)
    assert await taken(driver) == []
    assert await taken(driver) == []
    await driver.settle([settlement(job.lease, delay=delay or timedelta(0))], now=START)

    if delay is not None:
        assert await taken(driver) == []
    [again] = await taken(driver, now=START + (delay or timedelta(0)))

    assert again.id == job.id


async def test_what_enters_by_other_verbs_is_found_in_one_of_many_queues(driver: Driver) -> None:
    """B20: a replay, a job that was blocked behind its key, a job that was promoted."""
    [blocker] = [await enqueue_one(driver, queue=LAST, key=b"k")]
    [first] = await taken(driver)
    blocked = await enqueue_one(driver, queue=LAST, key=b"k")
    assert await taken(driver) == []
    assert await taken(driver) == []
    await driver.settle([Ack(first.lease)], now=START)
    [second] = await taken(driver)
    assert (first.id, second.id) == (blocker.id, blocked.id)
    assert await taken(driver) == []
    await driver.settle([Ack(second.lease)], now=START)
    assert await taken(driver) == []
    await driver.requeue([first.id], now=START)
    [replayed] = await taken(driver)
    assert replayed.id == first.id
    scheduled = await enqueue_one(driver, queue=QUEUES[8], run_at=START + SECOND)
    assert await taken(driver) == []
    await driver.promote(10, now=START + SECOND)
    [due] = await taken(driver, now=START + SECOND)
    assert due.id == scheduled.id


async def test_limits_hold_in_a_claim_of_many_queues(driver: Driver) -> None:
    """B20: paused, full, and a limit of the whole harbor."""
    await enqueue(driver, *(new_job(queue=queue) for queue in (*QUEUES[:4], QUEUES[1])))
    await driver.configure_queue(QueueSettings(queue=QUEUES[0], paused=True), now=START)
    await driver.configure_queue(QueueSettings(queue=QUEUES[1], max_running=1), now=START)
    await driver.configure_queue(QueueSettings(queue="*", max_running=2), now=START)

    jobs = await taken(driver)

    assert [job.queue for job in jobs] == [QUEUES[1], QUEUES[2]]
    assert await taken(driver) == []
    await driver.settle([Ack(job.lease) for job in jobs], now=START)
    assert [job.queue for job in await taken(driver)] == [QUEUES[1], QUEUES[3]]


async def test_a_copy_is_found_in_one_of_many_queues(driver: Driver) -> None:
    """B20: by another worker."""
    await enqueue_one(driver, queue=LAST)
    [job] = await taken(driver)
    assert await taken(driver) == []
    await driver.speculate(job.id, now=START)

    [copy] = await taken(driver, worker_id="worker-b")

    assert copy.speculates_on == job.id
