"""Jobs that many callers move at once: every look finds each of them exactly once."""

import asyncio
import random
from collections import Counter
from datetime import timedelta

import asyncpg
import pytest

from taskharbor.drivers.messages import EnqueueResult, Query, Settled
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.errors import LeaseLost
from taskharbor.model.job import JobRecord, Progress
from taskharbor.model.settlement import Ack, Cancelled, Fail, Release, Retry, Settlement, Stalled
from taskharbor.testing.conformance.kit import QUEUE, claim, new_job
from tests.integration.postgres.waiting import someone_waits_for

JOBS = 300
LEASE = timedelta(minutes=5)


class Hands:
    """All that move the jobs of one test, and the answers they got."""

    def __init__(self, driver: PostgresDriver, seed: int) -> None:
        self.driver = driver
        self.chance = random.Random(seed)
        self.ids: list[str] = []
        self.settled: Counter[tuple[str, str]] = Counter()  # (job, token)
        self.is_over = False

    async def work(self, name: str) -> None:
        while not self.is_over:
            jobs = (await self.driver.reserve(claim(limit=25, worker_id=name, lease_for=LEASE))).jobs
            if not jobs:
                await asyncio.sleep(0.005)
                continue
            some = self.chance.sample(jobs, len(jobs) // 2)
            progress = {some[0].id: Progress(0.5, "half")} if some and self.chance.random() < 0.3 else {}
            await self.driver.extend_leases([job.lease for job in some], LEASE, progress=progress)
            self.chance.shuffle(jobs)
            for part in (jobs[:15], jobs[15:]):
                await self._settle(part)

    async def _settle(self, jobs: list[JobRecord]) -> None:
        answers = await self.driver.settle([self._end(job) for job in jobs])
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, Settled):
                self.settled[job.id, job.token or ""] += 1
            else:
                assert isinstance(answer, LeaseLost)

    def _end(self, job: JobRecord) -> Settlement:
        lease = job.lease
        others: list[Settlement] = [
            Ack(lease, b"result"),
            Retry(lease, reason="again"),
            Release(lease),
            Stalled(lease, reason="gone"),
            Fail(lease, reason="no"),
            Cancelled(lease),
        ]
        return self.chance.choice(others) if self.chance.random() < 0.3 else Ack(lease)

    async def meddle(self) -> None:
        while not self.is_over:
            some = self.chance.sample(self.ids, 3)
            if self.chance.random() < 0.5:
                await self.driver.cancel(some)
            else:
                await self.driver.requeue(some)
            await asyncio.sleep(0.002)

    async def look(self) -> None:
        while not self.is_over:
            counted = await self.driver.count([QUEUE])
            assert counted[QUEUE].total == JOBS
            some = self.chance.sample(self.ids, 40)
            assert [job and job.id for job in await self.driver.get(some)] == some
            page = await self.driver.find(Query(queue=QUEUE, limit=1000))
            assert [job.id for job in page.jobs] == self.ids


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
async def test_no_look_and_no_step_loses_a_job(driver: PostgresDriver, seed: int) -> None:
    hands = Hands(driver, seed)
    jobs = [new_job(max_stalls=0) for _ in range(JOBS)]
    hands.ids = [job.id for job in jobs]
    await driver.enqueue(jobs)

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(hands.work(f"worker-{number}"))
        group.create_task(hands.meddle())
        group.create_task(hands.look())
        while sum(hands.settled.values()) < 2 * JOBS:
            await asyncio.sleep(0.01)
        hands.is_over = True

    assert max(hands.settled.values()) == 1, "one lease, one settlement"
    stored = await driver.get(hands.ids)
    assert all(job is not None for job in stored)


async def test_an_id_that_is_deleted_while_it_is_enqueued_again_is_new(
    driver: PostgresDriver, database_url: str
) -> None:
    """The call has found the job, and waits for the key of another one when the first is deleted."""
    known, holder = new_job(), new_job(key=b"key")
    await driver.enqueue([known, holder])
    await driver.cancel([known.id])
    keys, watcher = [await asyncpg.connect(database_url) for _ in range(2)]
    try:
        async with keys.transaction():
            await keys.execute(f"select from {driver.address.identifier}.job_key for update")
            again = asyncio.ensure_future(driver.enqueue([known, known, new_job(key=b"key")]))
            while not (await someone_waits_for(keys, watcher) or again.done()):
                await asyncio.sleep(0)
            await driver.delete([known.id])
        answers = await again
    finally:
        await keys.close()
        await watcher.close()

    assert [(answer.id, answer.result) for answer in answers] == [
        (known.id, EnqueueResult.CREATED),
        (known.id, EnqueueResult.DUPLICATE),
        (holder.id, EnqueueResult.UPDATED),
    ]
