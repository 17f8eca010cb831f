"""Routing: which worker may take a job, and which of its lanes comes first."""

from __future__ import annotations

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.errors import InvalidArgument
from taskharbor.model.settlement import Retry
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MINUTE,
    OTHER_QUEUE,
    QUEUE,
    START,
    enqueue_one,
    new_job,
    reserve,
    reserve_one,
    running,
    settle_one,
)


async def test_the_matching_lane_is_preferred_over_any_priority(driver: Driver) -> None:
    """R003-6: an older and more urgent job of `any` comes second."""
    older = await enqueue_one(driver, requires="any", priority=100, run_at=START - HOUR)
    own = await enqueue_one(driver, requires="cpu", priority=-100)

    taken = await reserve(driver, lanes=("cpu", "any"), limit=2)

    assert [job.id for job in taken] == [own.id, older.id]


async def test_a_worker_falls_back_to_the_next_lane(driver: Driver) -> None:
    """R003-6: when its own is empty, and never to a lane it did not name."""
    common = await enqueue_one(driver, requires="any")
    await enqueue_one(driver, requires="gpu", priority=100)

    assert [job.id for job in await reserve(driver, lanes=("cpu", "any"), limit=10)] == [common.id]
    assert await reserve(driver, lanes=("cpu", "any"), limit=10) == []


async def test_a_worker_of_kind_any_takes_only_that_lane(driver: Driver) -> None:
    """R003-7: a job for a GPU does not run where there may be none."""
    await enqueue_one(driver, requires="gpu")
    await enqueue_one(driver, requires="cpu")

    assert await reserve(driver, lanes=("any",), limit=10) == []


async def test_within_a_lane_priority_comes_first(driver: Driver) -> None:
    """R003-8: 50, 100 and 80 come out as 100, 80, 50, lane by lane."""
    jobs = [new_job(requires=lane, priority=number) for lane in ("any", "gpu") for number in (50, 100, 80)]
    await driver.enqueue(jobs, now=START)

    taken = await reserve(driver, lanes=("gpu", "any"), limit=10)

    assert [(job.requires, job.priority) for job in taken] == [
        (lane, number) for lane in ("gpu", "any") for number in (100, 80, 50)
    ]


async def test_queues_come_before_lanes(driver: Driver) -> None:
    """B20: all lanes of the first queue, then the second queue."""
    jobs = [new_job(queue=queue, requires=lane) for queue in (OTHER_QUEUE, QUEUE) for lane in ("any", "cpu")]
    await driver.enqueue(jobs, now=START)

    taken = await reserve(driver, queues=(QUEUE, OTHER_QUEUE), lanes=("cpu", "any"), limit=10)

    assert [(job.queue, job.requires) for job in taken] == [
        (queue, lane) for queue in (QUEUE, OTHER_QUEUE) for lane in ("cpu", "any")
    ]


async def test_any_label_is_a_lane(driver: Driver) -> None:
    """R003-7: an explicit list is obeyed as it is written."""
    for lane in ("tpu.v5", "any", "eu-west_1"):
        await enqueue_one(driver, requires=lane)

    taken = await reserve(driver, lanes=("eu-west_1", "tpu.v5", "any"), limit=10)

    assert [job.requires for job in taken] == ["eu-west_1", "tpu.v5", "any"]


@pytest.mark.parametrize("way", ["retry", "reclaim", "requeue"])
async def test_a_job_that_waits_again_keeps_lane_and_priority(driver: Driver, way: str) -> None:
    """R003-19: recovery must not throw everything into one lane."""
    job = await running(driver, requires="gpu", priority=7)
    then = START + LEASE
    if way == "retry":
        await settle_one(driver, Retry(job.lease, reason="broken"))
    elif way == "reclaim":
        await driver.reclaim(now=then)
    else:
        await driver.fail(job.id, job.token or "", START, "broken")
        await driver.requeue([job.id], now=START)

    assert await reserve(driver, now=then, lanes=("any", "cpu"), limit=10) == []
    again = await reserve_one(driver, now=then, lanes=("gpu",))
    assert (again.id, again.requires, again.priority) == (job.id, "gpu", 7)


async def test_a_scheduled_job_waits_in_its_lane(driver: Driver) -> None:
    """A06: due, it is found there and nowhere else."""
    job = await enqueue_one(driver, requires="gpu", run_at=START + MINUTE)

    assert await reserve(driver, now=START + MINUTE, lanes=("any",)) == []
    assert [taken.id for taken in await reserve(driver, now=START + MINUTE, lanes=("gpu", "any"))] == [job.id]


async def test_lanes_must_be_named_once_each(driver: Driver) -> None:
    """B18 N15: an empty or doubled list is refused."""
    for lanes in ((), ("cpu", "cpu"), ("a b",), ("*",)):
        with pytest.raises(InvalidArgument):
            await reserve(driver, lanes=lanes)
