"""Z5: without faults nothing runs twice. A million jobs on each store, by several processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from taskharbor.drivers import connect
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from tests.chaos.stores import Stores, available
from tests.integration.worker.ground import Ground

COUNT = 1_000_000
BATCH = 1000
DEADLINE_SECONDS = 3500.0


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", available())
async def test_a_million_jobs_without_faults_run_once_each(tmp_path: Path, name: str):
    with Stores() as stores:
        store = await asyncio.to_thread(stores.fresh, name, tmp_path)
        await store.prepare()
        ground = Ground(tmp_path)
        ground.url, ground.driver = store.url(), connect(store.url())
        async with ground.driver:
            supervisor = ground.supervisor(processes=2, options={"concurrency": 100})
            ids = await enqueued(ground)
            await until_all_have_ended(ground)
            supervisor.terminate()
            assert await ground.exit_code(supervisor) == 0
            counts = (await ground.driver.count(["default"]))["default"]
    runs = Counter(line.split()[1] for line in (tmp_path / "ticks").read_text().splitlines())
    assert runs == dict.fromkeys(ids, 1)
    assert (counts.completed, counts.ready, counts.running, counts.failed) == (COUNT, 0, 0, 0)


async def enqueued(ground: Ground) -> list[str]:
    """Batch by batch, while the workers are already at it."""
    entropy, clock = Entropy(), SystemClock()
    ids = []
    for _ in range(0, COUNT, BATCH):
        jobs = [NewJob(id=entropy.job_id(clock.now()), type="tick", max_stalls=3) for _ in range(BATCH)]
        await ground.driver.enqueue(jobs)
        ids += [job.id for job in jobs]
    return ids


async def until_all_have_ended(ground: Ground) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (await ground.driver.count(["default"]))["default"].completed < COUNT:
            await asyncio.sleep(1.0)
