"""Z5: without faults nothing runs twice. A million jobs on each store, by several processes.

`TASKHARBOR_MILLION=100000 make test-long ARGS='-k a_million'` runs fewer.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.worker.worker import Worker
from tests.chaos.stores import Stores, available
from tests.integration.worker.processes import ProcessHarness

COUNT = int(os.environ.get("TASKHARBOR_MILLION", "1000000"))
BATCH = 1000
AHEAD = 50_000  # how far producers may be ahead of the workers
DEADLINE_SECONDS = 3500.0
KEPT = QueueSettings(queue="default", retention=Retention(completed=timedelta(days=1)))
"""A run on a busy machine may take longer than finished jobs are kept for."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("name", available())
async def test_a_million_jobs_without_faults_run_once_each(tmp_path: Path, name: str, capsys):
    began = time.monotonic()
    with Stores() as stores:
        store = await asyncio.to_thread(stores.fresh, name, tmp_path)
        await store.prepare()
        harness = ProcessHarness(tmp_path)
        harness.url, harness.driver = store.url(), connect(store.url())
        try:
            async with harness.driver:
                await harness.driver.configure_queue(KEPT)
                supervisor = harness.supervisor(processes=2, options={"concurrency": 100})
                ids = await enqueued(harness.driver)
                await until_all_have_ended(harness.driver)
                took = time.monotonic() - began
                supervisor.terminate()
                assert await harness.exit_code(supervisor) == 0
                counts = (await harness.driver.count(["default"]))["default"]
        finally:
            await store.close()
    runs = Counter(line.split()[1] for line in (tmp_path / "ticks").read_text().splitlines())
    assert runs == dict.fromkeys(ids, 1)
    assert (counts.completed, counts.ready, counts.running, counts.failed) == (COUNT, 0, 0, 0)
    show(capsys, name, took)


async def test_a_million_jobs_in_memory_run_once_each(capsys):
    began = time.monotonic()
    runs: Counter[str] = Counter()

    async def tick(ctx, job):
        runs[job.id] += 1

    async with MemoryDriver() as driver:
        await driver.configure_queue(KEPT)
        workers = [Worker(driver, concurrency=100, name=f"worker-{number}") for number in range(2)]
        for worker in workers:
            worker.register("tick", tick)
        working = [asyncio.create_task(worker.arun()) for worker in workers]
        ids = await enqueued(driver)
        await until_all_have_ended(driver)
        took = time.monotonic() - began
        for worker in workers:
            worker.stop()
        await asyncio.gather(*working)
        counts = (await driver.count(["default"]))["default"]
    assert runs == dict.fromkeys(ids, 1)
    assert (counts.completed, counts.ready, counts.running, counts.failed) == (COUNT, 0, 0, 0)
    show(capsys, "memory", took)


async def enqueued(driver: Driver) -> list[str]:
    """Batch by batch, while the workers are already at it."""
    entropy, clock = Entropy(), SystemClock()
    ids: list[str] = []
    for start in range(0, COUNT, BATCH):
        size = min(BATCH, COUNT - start)
        jobs = [NewJob(id=entropy.job_id(clock.now()), type="tick", max_stalls=3) for _ in range(size)]
        await driver.enqueue(jobs)
        ids += [job.id for job in jobs]
        if start % AHEAD == 0:
            await until_only(driver, AHEAD)
    return ids


async def until_only(driver: Driver, waiting: int) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (await driver.count(["default"]))["default"].ready > waiting:
            await asyncio.sleep(0.2)


async def until_all_have_ended(driver: Driver) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (await driver.count(["default"]))["default"].completed < COUNT:
            await asyncio.sleep(1.0)


def show(capsys, name: str, took: float) -> None:
    with capsys.disabled():
        print(f"\n{COUNT:,} jobs on {name} in {took:.0f} s, {COUNT / took:,.0f} a second, each once")
