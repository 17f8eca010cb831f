"""Many jobs and two worker processes on one SQLite file: each job runs exactly once when nothing fails."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from tests.integration.worker.processes import ProcessHarness

COUNT = 100_000
BATCH = 10_000
DEADLINE_SECONDS = 300.0


async def put_in_batches(harness: ProcessHarness, count: int) -> list[str]:
    entropy, clock = Entropy(), SystemClock()
    ids = [entropy.job_id(clock.now()) for _ in range(count)]
    for first in range(0, count, BATCH):
        jobs = [NewJob(id=job_id, type="tick") for job_id in ids[first : first + BATCH]]
        await harness.driver.enqueue(jobs)
    return ids


async def until_two_are_at_work(harness: ProcessHarness) -> None:
    async with asyncio.timeout(60):
        while len(await harness.driver.workers()) < 2:
            await asyncio.sleep(0.05)


async def until_all_have_ended(harness: ProcessHarness, count: int) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (await harness.driver.count(["default"]))["default"].completed < count:
            await asyncio.sleep(0.2)


@pytest.mark.more("hundreds of jobs, or megabytes of them")
@pytest.mark.timeout(400)
async def test_each_of_many_jobs_runs_exactly_once(tmp_path):
    """Both processes take part, no job is left out, none runs twice, nothing stays behind."""
    harness = ProcessHarness(tmp_path, "?durability=normal")
    async with harness.driver:
        supervisor = harness.supervisor(processes=2)
        await until_two_are_at_work(harness)
        ids = await put_in_batches(harness, COUNT)
        await until_all_have_ended(harness, COUNT)
        supervisor.terminate()
        assert await harness.exit_code(supervisor) == 0
        counts = (await harness.driver.count(["default"]))["default"]

    ticks = [line.split() for line in (tmp_path / "ticks").read_text().splitlines()]
    runs = Counter(job_id for _, job_id in ticks)
    assert runs == dict.fromkeys(ids, 1)
    assert len({pid for pid, _ in ticks}) == 2
    assert (counts.completed, counts.ready, counts.running, counts.failed) == (COUNT, 0, 0, 0)
