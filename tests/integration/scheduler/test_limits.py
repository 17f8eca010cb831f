"""Limits from end to end: exact while workers come, go and die, and never at the cost of another queue."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from taskharbor.drivers.messages import Query
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings
from taskharbor.model.state import JobState
from tests.integration.worker.processes import SLOW

HOUR = timedelta(hours=1)


class Gate:
    """A handler that notes who came, and keeps the jobs of one queue until it is opened."""

    def __init__(self, *, keeps: str) -> None:
        self.keeps = keeps
        self.came: list[str] = []
        self.is_open = asyncio.Event()

    async def __call__(self, ctx, job):
        self.came.append(job.queue)
        if job.queue == self.keeps:
            await self.is_open.wait()

    def count(self, queue: str) -> int:
        return self.came.count(queue)


@pytest.fixture
def gate():
    return Gate(keeps="narrow")


async def configure(harness, queue, **rules):
    await harness.driver.configure_queue(QueueSettings(queue=queue, **rules))


async def test_paused_throttled_and_narrow_queues_hold_nobody_else_up(harness, gate):
    """One claim looks at all four, with the three that are held back in front of the free one."""
    await configure(harness, "paused", paused=True)
    await configure(harness, "throttled", execute_rate=RateLimit(2, HOUR))
    await configure(harness, "narrow", max_running=1)
    for queue in ("paused", "throttled", "narrow"):
        await harness.add_many(30, queue=queue, priority=9)
    free = await harness.add_many(30, queue="free")

    queues = ["paused", "throttled", "narrow", "free"]
    async with harness.working(gate, queues=queues, concurrency=4, strict=True):
        await harness.all_ended(free)
        counts = await harness.driver.count()

        assert (gate.count("paused"), gate.count("throttled"), gate.count("narrow")) == (0, 2, 1)
        assert (counts["throttled"].completed, counts["throttled"].ready) == (2, 28)
        assert (counts["narrow"].running, counts["narrow"].ready, counts["paused"].ready) == (1, 29, 30)
        gate.is_open.set()


async def test_a_limit_that_is_changed_holds_from_the_next_claim_on(harness):
    """A marker in another queue shows that a claim has seen the limit: that claim looked at both queues."""
    gate = Gate(keeps="work")
    await harness.add_many(8, queue="work")

    async def a_claim_later():
        await harness.ended(await harness.add(queue="marker"))
        return gate.count("work")

    await configure(harness, "work", max_running=0)
    async with harness.working(gate, queues=["work", "marker"], concurrency=10):
        assert await a_claim_later() == 0
        await configure(harness, "work", max_running=2)
        await harness.until(lambda: gate.count("work") == 2, "two jobs")
        assert await a_claim_later() == 2
        await configure(harness, "work", max_running=1)  # below what runs: they run on
        assert await a_claim_later() == 2
        await configure(harness, "work", max_running=None, paused=True)
        assert await a_claim_later() == 2
        await configure(harness, "work", paused=False, execute_rate=RateLimit(3, HOUR))
        await harness.until(lambda: gate.count("work") == 5, "three more jobs")
        assert await a_claim_later() == 5
        await configure(harness, EVERY_QUEUE, max_running=6)  # the five that run, and one more
        await configure(harness, "work", execute_rate=None)
        await harness.until(lambda: gate.count("work") == 6, "one more job")
        await configure(harness, EVERY_QUEUE, max_running=None)
        await harness.until(lambda: gate.count("work") == 8, "all jobs")
        gate.is_open.set()


@pytest.mark.more("kills processes or servers and waits until others take over")
async def test_max_running_holds_over_processes_that_are_killed(shared_harness):
    """Of a queue and of the harbor, while two of three workers die with what they hold."""
    harness = shared_harness
    await configure(harness, "narrow", max_running=2)
    await configure(harness, EVERY_QUEUE, max_running=3)
    ids = [
        job_id
        for queue in ("narrow", "wide")
        for job_id in await harness.add_many(10, "hold", payload=b"0.1", queue=queue)
    ]
    options = {"queues": ["narrow", "wide"], "concurrency": 4, "lease": 1.5}
    workers = [harness.start_worker(**options) for _ in range(3)]
    seen: set[tuple[int, int]] = set()

    async with asyncio.timeout(SLOW * 2):
        while len(harness.notes("started")) < 4:
            seen.add(await good_leases(harness))
        for victim in workers[:2]:
            victim.kill()
        harness.start_worker(**options)
        while sum(count.completed for count in (await harness.driver.count()).values()) < len(ids):
            seen.add(await good_leases(harness))

    assert max(narrow for narrow, _ in seen) <= 2
    assert max(narrow + wide for narrow, wide in seen) == 3
    assert all(record.attempts == 0 for record in await harness.all_ended(ids))


async def good_leases(harness) -> tuple[int, int]:
    """How many in each queue. A lease that is still good after the look was good during it."""
    page = await harness.driver.find(Query(states=(JobState.RUNNING,), limit=1000))
    at = (await harness.driver.info()).at
    queues = [job.queue for job in page.jobs if job.lease_expires_at > at]
    return queues.count("narrow"), queues.count("wide")
