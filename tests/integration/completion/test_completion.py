"""ctx.transaction(): a handler's own writes and the end of its job happen together, or not at all."""

from __future__ import annotations

import asyncio
import logging
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.errors import ConfigurationError
from taskharbor.events import AttemptFinished
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.state import JobState
from taskharbor.testing.servers import fresh_postgres_url
from taskharbor.worker import Worker
from tests.integration.completion import ledger
from tests.integration.completion.process import POINTS

SLOW = 60.0
STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db",
    "postgres": lambda _: fresh_postgres_url(),
}


class Site:
    """One store with a ledger in it."""

    def __init__(self, url: str, driver: Driver) -> None:
        self.url = url
        self.driver = driver
        self.events: list[AttemptFinished] = []

    @asynccontextmanager
    async def working(self, handler: Any, **options: Any) -> AsyncIterator[Worker]:
        retry = RetryPolicy(base=timedelta(milliseconds=1), jitter=0.0)
        worker = Worker(self.driver, retry=retry, **{"lease": timedelta(seconds=9), **options})
        worker.register("work", handler)
        worker.events.listen(self.events.append, AttemptFinished)
        task = asyncio.create_task(worker.arun())
        try:
            yield worker
        finally:
            worker.stop(now=True)
            await asyncio.wait_for(task, SLOW)

    async def put(self, **fields: Any) -> str:
        job_id = Entropy().job_id(SystemClock().now())
        await self.driver.enqueue([NewJob(id=job_id, type="work", max_stalls=0, **fields)])
        return job_id

    async def ended(self, job_id: str) -> JobRecord:
        async with asyncio.timeout(SLOW):
            while True:
                [record] = await self.driver.get([job_id])
                assert record is not None
                if record.state.is_terminal:
                    return record
                await asyncio.sleep(0.01)

    def process(self, point: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.integration.completion.process", self.url, point]
        return subprocess.Popen(command, cwd=Path(__file__).parents[3])


@pytest.fixture(params=STORES)
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    url = STORES[request.param](tmp_path)
    async with connect(url) as driver:
        await ledger.create(url)
        yield Site(url, driver)


async def test_the_commit_completes_the_job_and_keeps_the_write(site):
    async def handler(ctx, job):
        async with ctx.transaction() as connection:
            await ledger.write(connection, job.id, site.url)

    async with site.working(handler):
        record = await site.ended(await site.put())

    assert (record.state, record.starts, record.attempts) == (JobState.COMPLETED, 1, 0)
    assert await ledger.rows(site.url) == {record.id: 1}
    assert [(event.job_id, event.outcome) for event in site.events] == [(record.id, "completed")]


async def test_an_error_in_the_block_undoes_the_write_and_the_job_tries_again(site):
    async def handler(ctx, job):
        async with ctx.transaction() as connection:
            await ledger.write(connection, job.id, site.url)
            if ctx.attempt == 1:
                raise ConnectionError("no luck")

    async with site.working(handler):
        record = await site.ended(await site.put(max_attempts=3))

    assert (record.state, record.attempts) == (JobState.COMPLETED, 1)
    assert await ledger.rows(site.url) == {record.id: 1}


async def test_an_error_after_the_commit_changes_nothing_and_is_logged(site, caplog):
    async def handler(ctx, job):
        async with ctx.transaction() as connection:
            await ledger.write(connection, job.id, site.url)
        with pytest.raises(ConfigurationError, match="over"):
            ctx.transaction()
        raise ValueError("too late to matter")

    with caplog.at_level(logging.WARNING, "taskharbor.worker"):
        async with site.working(handler):
            record = await site.ended(await site.put(max_attempts=3))

    assert (record.state, record.starts) == (JobState.COMPLETED, 1)
    assert await ledger.rows(site.url) == {record.id: 1}
    assert "too late to matter" in caplog.text


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
async def test_a_block_outlives_its_lease_only_where_the_lease_can_be_extended_meanwhile(site):
    """Postgres extends it. SQLite cannot while the block keeps others from writing, and undoes the write."""

    async def handler(ctx, job):
        async with ctx.transaction() as connection:
            await ledger.write(connection, job.id, site.url)
            if not first.is_set():
                first.set()
                await asyncio.sleep(9)

    first = asyncio.Event()
    async with site.working(handler, lease=timedelta(seconds=4)):
        record = await site.ended(await site.put())

    assert record.state is JobState.COMPLETED
    assert record.starts == (2 if site.driver.capabilities.one_writer else 1)
    assert await ledger.rows(site.url) == {record.id: 1}


async def test_jobs_without_a_transaction_go_on_beside_it(site):
    async def handler(ctx, job):
        if job.payload:
            async with ctx.transaction() as connection:
                await ledger.write(connection, job.id, site.url)
        return "done"

    async with site.working(handler, concurrency=4):
        ids = [await site.put(payload=b"x" * (n % 2)) for n in range(10)]
        records = [await site.ended(job_id) for job_id in ids]

    assert {record.state for record in records} == {JobState.COMPLETED}
    assert await ledger.rows(site.url) == dict.fromkeys(ids[1::2], 1)


@pytest.mark.more("kills processes or servers and waits until others take over")
@pytest.mark.parametrize("point", POINTS)
async def test_a_worker_killed_at_this_point_leaves_one_write(site, point):
    job_id = await site.put()
    first, second = site.process(point), None
    try:
        assert await asyncio.to_thread(first.wait, SLOW) == -9
        written = await ledger.rows(site.url)
        second = site.process("never")
        record = await site.ended(job_id)
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.wait()

    assert written == ({job_id: 1} if point == "committed" else {})
    assert (record.state, record.starts) == (JobState.COMPLETED, 1 if point == "committed" else 2)
    assert await ledger.rows(site.url) == {job_id: 1}


@pytest.mark.more("kills processes or servers and waits until others take over")
@pytest.mark.timeout(180)
async def test_workers_killed_at_any_instant_write_once_for_each_job(site):
    chance = random.Random(11)
    ids = [await site.put() for _ in range(200)]
    for _ in range(4):
        worker = site.process("never")
        seen = len(await ledger.rows(site.url))
        async with asyncio.timeout(SLOW):
            while len(await ledger.rows(site.url)) == seen:
                await asyncio.sleep(0.005)
        await asyncio.sleep(chance.uniform(0, 0.05))
        worker.kill()
        worker.wait()
    worker = site.process("never")
    try:
        records = [await site.ended(job_id) for job_id in ids]
    finally:
        worker.kill()
        worker.wait()

    assert {record.state for record in records} == {JobState.COMPLETED}
    assert await ledger.rows(site.url) == dict.fromkeys(ids, 1)
