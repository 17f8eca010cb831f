"""Every verb at once, under limits and keys, with leases that run out: the server finds no deadlock.

`TASKHARBOR_RACE_SECONDS` makes the runs longer.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import asyncpg
import pytest

from taskharbor.drivers.messages import Settled
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.errors import LeaseLost, RateLimited, TaskHarborError
from taskharbor.model.job import JobRecord, NewJob, Progress
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings, Retention
from taskharbor.model.settlement import Ack, Cancelled, Fail, Release, Retry, Settlement, Stalled
from taskharbor.testing.conformance.kit import claim, new_job

SECONDS = float(os.environ.get("TASKHARBOR_RACE_SECONDS", "3"))
QUEUES = ("limited", "rated", "free", "kept-short")
LEASE = timedelta(milliseconds=60)
LIMIT, HARBOR_LIMIT = 6, 20
VERBS = ("enqueue", "work", "control", "time", "hint")


class Hands:
    """Everybody who acts on one store, and what they saw."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ids: list[str] = []
        self.errors: Counter[str] = Counter()
        self.spans: list[tuple[str, datetime, datetime]] = []  # queue, from, until: when a lease held
        self.verbs: Counter[str] = Counter()
        self.is_over = False

    def some(self, count: int) -> list[str]:
        """Ids in no order, some of them of jobs that are long gone."""
        known = self.ids[-300:]
        return self.chance.sample(known, min(count, len(known)))

    async def keep(self, verb: str, act: Callable[..., Awaitable[None]], *arguments: object) -> None:
        while not self.is_over:
            try:
                await act(*arguments)
            except RateLimited:
                pass
            except TaskHarborError as error:
                self.errors[f"{verb}: {error}"] += 1
            self.verbs[verb] += 1
            await asyncio.sleep(0)

    # ------------------------------------------------------------------ producers

    async def send(self, driver: PostgresDriver) -> None:
        jobs = [self.job() for _ in range(self.chance.randint(1, 6))]
        self.ids += [job.id for job in jobs]
        await driver.enqueue(jobs)
        if self.chance.random() < 0.3:  # the same once more, in another order
            self.chance.shuffle(jobs)
            await driver.enqueue(jobs)

    def job(self) -> NewJob:
        draw = self.chance.random
        return new_job(
            queue=self.chance.choice(QUEUES),
            key=b"%d" % self.chance.randint(0, 5) if draw() < 0.4 else None,
            idempotency_key=b"%d" % self.chance.randint(0, 50) if draw() < 0.1 else None,
            delay=timedelta(milliseconds=self.chance.randint(1, 40)) if draw() < 0.4 else None,
            max_stalls=2,
        )

    # ------------------------------------------------------------------ workers

    async def work(self, driver: PostgresDriver, name: str) -> None:
        queues = self.chance.sample(QUEUES, self.chance.randint(1, len(QUEUES)))
        rate = RateLimit(40, timedelta(milliseconds=200)) if self.chance.random() < 0.2 else None
        wanted = claim(queues=queues, limit=4, worker_id=name, lease_for=LEASE, rate=rate)
        jobs = (await driver.reserve(wanted)).jobs
        for _ in range(3):
            if jobs and self.chance.random() < 0.5:
                await self.beat(driver, jobs)
            jobs = [job for job in jobs if self.chance.random() > 0.15]  # abandoned: their leases run out
            answer = await driver.exchange([self.end(job) for job in jobs], wanted)
            for job, settled in zip(jobs, answer.settled, strict=True):
                assert isinstance(settled, Settled | LeaseLost)
                if isinstance(settled, Settled) and job.started_at is not None:
                    self.spans.append((job.queue, job.started_at, settled.at))
            if answer.error is not None:
                self.errors[f"exchange: {answer.error}"] += 1
            jobs = answer.claimed

    async def beat(self, driver: PostgresDriver, jobs: list[JobRecord]) -> None:
        progress = {job.id: Progress(0.5) for job in jobs if self.chance.random() < 0.3}
        await driver.extend_leases([job.lease for job in jobs], LEASE, progress=progress)

    def end(self, job: JobRecord) -> Settlement:
        lease = job.lease
        ends: list[Settlement] = [
            *(Ack(lease), Ack(lease), Ack(lease), Ack(lease, b"result")),
            *(
                Retry(lease, delay=timedelta(milliseconds=5)),
                Release(lease),
                Stalled(lease),
                Fail(lease, "no"),
            ),
            Cancelled(lease),
        ]
        return self.chance.choice(ends)

    async def listen(self, driver: PostgresDriver, name: str) -> None:
        """As an idle worker does: its claims then ask for a wake-up, and enqueues send one."""
        async for _ in driver.wakeups(QUEUES, name):
            self.verbs["hint"] += 1

    # ------------------------------------------------------------------ everybody else

    async def meddle(self, driver: PostgresDriver) -> None:
        ids = self.some(self.chance.randint(1, 8))
        if not ids:
            return
        match self.chance.randint(0, 5):
            case 0 | 1:
                await driver.cancel(ids)
            case 2:
                await driver.delete(ids)
            case 3:
                await driver.requeue(ids)
            case 4:
                await driver.cancel_waiting(self.chance.choice(QUEUES), b"%d" % self.chance.randint(0, 5))
            case 5:
                await driver.speculate(ids[0])

    async def keep_time(self, driver: PostgresDriver) -> None:
        await driver.reclaim(20)
        await driver.promote(50)
        await driver.prune(30)
        if self.chance.random() < 0.1:
            await set_up(driver)


async def set_up(driver: PostgresDriver) -> None:
    short = Retention(completed=timedelta(0), failed=timedelta(milliseconds=5), cancelled=timedelta(0))
    await driver.configure_queue(QueueSettings(queue="limited", max_running=LIMIT))
    await driver.configure_queue(
        QueueSettings(queue="rated", execute_rate=RateLimit(50, timedelta(milliseconds=100)))
    )
    await driver.configure_queue(QueueSettings(queue="kept-short", retention=short, fail_queue="free"))
    await driver.configure_queue(QueueSettings(queue=EVERY_QUEUE, max_running=HARBOR_LIMIT))


async def deadlocks(url: str) -> int:
    """How many the server has ever found here. Every backend that is closed has reported all it counted."""
    connection = await asyncpg.connect(url)
    try:
        found = await connection.fetchval(
            "select deadlocks from pg_stat_database where datname = current_database()"
        )
        return int(found)
    finally:
        await connection.close()


def most_at_once(spans: list[tuple[datetime, datetime]]) -> int:
    changes = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])  # ends first
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


@pytest.mark.more("hundreds of jobs, or megabytes of them")
@pytest.mark.timeout(300 + 3 * SECONDS)
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_mix_of_verbs_deadlocks(store_url: str, database_url: str, seed: int) -> None:
    before = await deadlocks(database_url)
    hands = Hands(seed)
    drivers = [await PostgresDriver.from_url(store_url).open() for _ in range(5)]
    await set_up(drivers[0])

    async with asyncio.TaskGroup() as group:
        for number, driver in enumerate(drivers):
            group.create_task(hands.keep("enqueue", hands.send, driver))
            group.create_task(hands.keep("control", hands.meddle, driver))
            for half in range(2):
                group.create_task(hands.keep("work", hands.work, driver, f"worker-{number}-{half}"))
        for driver in drivers[:2]:
            group.create_task(hands.keep("time", hands.keep_time, driver))
        ears = [group.create_task(hands.listen(driver, f"ear-{n}")) for n, driver in enumerate(drivers)]
        await asyncio.sleep(SECONDS)
        while any(hands.verbs[verb] <= 10 for verb in VERBS):  # the machine is busy
            await asyncio.sleep(0.1)
        hands.is_over = True
        for ear in ears:
            ear.cancel()
    for driver in drivers:
        await driver.close()
    await asyncio.sleep(0.2)  # for the backends to end

    assert await deadlocks(database_url) == before
    assert not hands.errors
    limited = [(began, ended) for queue, began, ended in hands.spans if queue == "limited"]
    assert most_at_once(limited) <= LIMIT
    assert most_at_once([(began, ended) for _, began, ended in hands.spans]) <= HARBOR_LIMIT


@pytest.mark.timeout(300 + 3 * SECONDS)
async def test_leases_that_run_out_under_a_full_limit_are_taken_over_in_time(
    store_url: str, database_url: str
) -> None:
    """A claim that waits for room sweeps what has run out. Nothing may block that."""
    before = await deadlocks(database_url)
    drivers = [await PostgresDriver.from_url(store_url).open() for _ in range(10)]
    await drivers[0].configure_queue(QueueSettings(queue=EVERY_QUEUE, max_running=LIMIT))
    await drivers[0].configure_queue(QueueSettings(queue="limited", max_running=LIMIT - 1))
    chance = random.Random(3)
    abandoned: dict[str, datetime] = {}
    late: list[timedelta] = []
    calls: list[float] = []
    is_over = False

    async def work(driver: PostgresDriver, name: str) -> None:
        loop = asyncio.get_running_loop()
        jobs: list[JobRecord] = []
        while not is_over:
            queues = chance.sample(("limited", "free"), 2)
            wanted = claim(queues=queues, limit=3, worker_id=name, lease_for=timedelta(milliseconds=150))
            asked = loop.time()
            answer = await driver.exchange([Ack(job.lease) for job in jobs], wanted)
            calls.append(loop.time() - asked)
            assert answer.error is None
            jobs = []
            for job in answer.claimed:
                assert job.started_at is not None
                assert job.lease_expires_at is not None
                if (ended := abandoned.pop(job.id, None)) is not None:
                    late.append(job.started_at - ended)
                if chance.random() < 0.2:
                    abandoned[job.id] = job.lease_expires_at
                else:
                    jobs.append(job)
            await asyncio.sleep(0.002)

    async def send(driver: PostgresDriver) -> None:
        while not is_over:
            counts = await driver.count()
            if sum(one.ready for one in counts.values()) < 20:
                await driver.enqueue([new_job(queue=queue) for queue in ("limited", "free") * 10])
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for number, driver in enumerate(drivers):
            group.create_task(work(driver, f"worker-{number}"))
        group.create_task(send(drivers[0]))
        await asyncio.sleep(SECONDS)
        while len(late) <= 10:  # the machine is busy
            await asyncio.sleep(0.1)
        is_over = True
    for driver in drivers:
        await driver.close()
    await asyncio.sleep(0.2)  # for the backends to end

    assert await deadlocks(database_url) == before
    assert max(late) <= timedelta(seconds=2), max(calls)
