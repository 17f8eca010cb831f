"""A server that dies in the middle of the work: workers come back to it, and every job is settled once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from taskharbor import JobContext
from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query
from taskharbor.errors import DriverUnavailable
from taskharbor.events import AttemptFinished, LeaseWasLost
from taskharbor.model.job import Job, JobRecord
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import new_jobs
from taskharbor.testing.http_server import HttpServer
from taskharbor.worker import Worker
from tests.integration.http.http_fixture import SLOW

JOBS = 2_000
LEASE = timedelta(minutes=10)  # no lease ends by itself here, however slow the machine


class WorkerHarness:
    """A server, two workers that reach it by HTTP alone, and counts of their runs and answers."""

    def __init__(self, server: HttpServer, driver: Driver) -> None:
        self.server = server
        self.driver = driver
        self.runs: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.lost: list[LeaseWasLost] = []
        self.killed_at = datetime.max.replace(tzinfo=UTC)

    async def handle(self, ctx: JobContext, job: Job) -> str:
        self.runs[job.id] += 1
        return "done"

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with connect(self.server.url) as first, connect(self.server.url) as second:
            workers = [
                Worker(driver, queues=["kit"], concurrency=8, lease=LEASE) for driver in (first, second)
            ]
            for worker in workers:
                worker.register("kit.job", self.handle)
                worker.events.listen(lambda event: self.ends.update([event.job_id]), AttemptFinished)
                worker.events.listen(self.lost.append, LeaseWasLost)
            tasks = [asyncio.create_task(worker.arun()) for worker in workers]
            yield
            for worker in workers:
                worker.stop()
            await asyncio.wait_for(asyncio.gather(*tasks), SLOW)

    async def count(self, state: str) -> int:
        counts = (await self.driver.count(["kit"])).get("kit")
        return getattr(counts, state, 0)

    async def until(self, state: str, number: int) -> None:
        async with asyncio.timeout(2 * SLOW):
            while await self.count(state) < number:
                await asyncio.sleep(0.01)

    async def dies_and_comes_back(self) -> None:
        await asyncio.to_thread(self.server.kill)
        self.killed_at = (await self.driver.info()).at
        await asyncio.to_thread(self.server.start)

    async def rescue_what_nobody_heard_of(self) -> None:
        """Claims whose answer died with the server last until their leases end: let that be now.

        Whatever was heard of ran at once; so when everything that ran has ended, what was claimed before
        the last death and still runs is held by nobody.
        """
        async with asyncio.timeout(2 * SLOW):
            while await self.count("ready") or self.runs != self.ends:
                await asyncio.sleep(0.01)
        await self.driver.reclaim(limit=1000, now=self.killed_at + LEASE)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[WorkerHarness]:
    with HttpServer(f"sqlite:///{tmp_path}/jobs.db?durability=normal") as server:
        async with connect(f"sqlite:///{tmp_path}/jobs.db?durability=normal") as driver:
            yield WorkerHarness(server, driver)


@pytest.mark.more("kills processes or servers and waits until others take over")
@pytest.mark.timeout(240)
async def test_a_server_killed_in_the_middle_of_a_drain_loses_nothing_and_counts_nothing_twice(harness):
    await harness.driver.enqueue(new_jobs(JOBS, max_stalls=5))

    async with harness.working():
        for share in (1, 2, 3):
            await harness.until("completed", JOBS * share // 8)
            await harness.dies_and_comes_back()
        await harness.rescue_what_nobody_heard_of()
        await harness.until("completed", JOBS)
        async with asyncio.timeout(SLOW):
            while sum(harness.ends.values()) < JOBS:
                await asyncio.sleep(0.01)

    page = [job async for job in every_job(harness.driver)]
    assert {job.state for job in page} == {JobState.COMPLETED}
    assert harness.runs == dict.fromkeys((job.id for job in page), 1)
    assert harness.ends == harness.runs
    assert harness.lost == []
    assert {(job.attempts, job.starts - job.stalls) for job in page} == {(0, 1)}
    assert len(page) == JOBS


async def every_job(driver: Driver) -> AsyncIterator[JobRecord]:
    cursor = None
    while True:
        page = await driver.find(Query(limit=1000, cursor=cursor))
        for job in page.jobs:
            yield job
        if (cursor := page.next_cursor) is None:
            return


async def test_a_client_works_on_after_a_restart_of_its_server(harness):
    async with connect(harness.server.url) as client:
        await client.enqueue(new_jobs(1))
        await harness.dies_and_comes_back()
        await client.enqueue(new_jobs(1))
        await asyncio.to_thread(harness.server.kill)
        with pytest.raises(DriverUnavailable) as error:
            await client.enqueue(new_jobs(1))
        await asyncio.to_thread(harness.server.start)
        await client.enqueue(new_jobs(1))
        await asyncio.to_thread(client.enqueue_blocking, new_jobs(1))
        await harness.dies_and_comes_back()
        await asyncio.to_thread(client.enqueue_blocking, new_jobs(1))

        assert error.value.done in (False, None)
        assert (await client.count())["kit"].ready == 5
