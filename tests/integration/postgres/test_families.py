"""Families under real concurrency: callbacks fire once, nothing waits for ever, the server finds no deadlock.

`TASKHARBOR_RACE_SECONDS` makes the run longer: thirty acts for each of them.
"""

import asyncio
import os
import random
from collections import Counter
from datetime import timedelta

import asyncpg
import psycopg
import pytest

from taskharbor.drivers.messages import Deleted, Query, Settled
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.errors import BrokenBond, LeaseLost, TaskHarborError
from taskharbor.model.family_steps import bonds_of, family_of, parent_of
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.settlement import Ack, Cancelled, Fail, Park, Release, Retry, Settlement
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.testing.conformance.kit import claim, find_all, new_job
from taskharbor.testing.conformance.relatives import after, bound, children, group
from tests.integration.postgres.test_deadlocks import deadlocks

ACTS = int(30 * float(os.environ.get("TASKHARBOR_RACE_SECONDS", "4")))
LEASE = timedelta(milliseconds=150)


async def test_the_callbacks_of_many_groups_fire_once(store_url: str, database_url: str) -> None:
    """Workers on five handles settle children of the same groups at once."""
    before = await deadlocks(database_url)
    drivers = [await PostgresDriver.from_url(store_url).open() for _ in range(5)]
    callbacks: list[NewJob] = []
    for _ in range(8):
        root = group()
        callbacks.append(after(root))
        await drivers[0].enqueue([root, *children(root, 25), callbacks[-1]])
    runs: Counter[str] = Counter()

    async def work(driver: PostgresDriver, name: str) -> None:
        wanted = claim(limit=7, worker_id=name)
        jobs = (await driver.reserve(wanted)).jobs
        while jobs:
            runs.update(job.id for job in jobs)
            answer = await driver.exchange([Ack(job.lease) for job in jobs], wanted)
            assert all(isinstance(one, Settled) for one in answer.settled)
            jobs = answer.claimed

    for _ in range(3):  # a worker that finds nothing stops, though another may release something yet
        await asyncio.gather(*(work(driver, f"w{no}") for no, driver in enumerate(drivers)))
    for driver in drivers:
        await driver.close()
    await asyncio.sleep(0.2)  # for the backends to end

    assert set(runs.values()) == {1}
    assert len(runs) == 8 * 26
    assert all(runs[job.id] == 1 for job in callbacks)
    assert await deadlocks(database_url) == before


class Hands:
    """Everybody who acts on the families of one store."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.roots: list[NewJob] = []
        self.ids: list[str] = []
        self.verbs: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.deleted: set[str] = set()

    async def keep(self, driver: PostgresDriver, name: str) -> None:
        acts = [self.send, self.work, self.work, self.work, self.meddle, self.keep_time]
        while self.verbs.total() < ACTS:
            act = self.chance.choice(acts)
            try:
                await act(driver, name)
            except BrokenBond:  # a parent that is over by now
                pass
            except TaskHarborError as error:
                self.errors[f"{act.__name__}: {error}"] += 1
            self.verbs[act.__name__] += 1
            await asyncio.sleep(0)

    async def send(self, driver: PostgresDriver, _: str) -> None:
        if self.roots and self.chance.random() < 0.3:  # more children, or more that comes after
            root = self.chance.choice(self.roots[-10:])
            jobs = [*children(root, 2), after(root, when="over")]
        else:
            root = group(tolerate=self.chance.choice((0, 1, None)), fail_fast=self.chance.random() < 0.3)
            below = bound(parent=root.id, done_by="children")
            first, second = children(root, 2, optional=self.chance.random() < 0.3)
            jobs = [root, below, first, second, *children(below, 3), after(first, second, when="over")]
            jobs += [after(first), after(root, when="over"), after(root, when="failure"), new_job()]
            jobs.append(after(jobs[-1], jobs[-2], when="over"))
            self.roots.append(root)
        self.ids += [job.id for job in jobs]
        await driver.enqueue(jobs)

    async def work(self, driver: PostgresDriver, name: str) -> None:
        wanted = claim(limit=5, worker_id=name, lease_for=LEASE)
        jobs = (await driver.reserve(wanted)).jobs
        if jobs and self.chance.random() < 0.4:
            await driver.extend_leases([job.lease for job in jobs], LEASE)
        jobs = [job for job in jobs if self.chance.random() > 0.1]
        settlements = [await self.end(driver, job) for job in jobs]
        for answer in (await driver.exchange(settlements, wanted)).settled:
            assert isinstance(answer, Settled | LeaseLost)

    async def end(self, driver: PostgresDriver, job: JobRecord) -> Settlement:
        lease, draw = job.lease, self.chance.random()
        if draw < 0.1 and job.starts == 1:  # it becomes a parent in the middle of its work
            child = bound(parent=job.id)
            self.ids.append(child.id)
            try:
                await driver.enqueue([child], by=lease)
            except LeaseLost:
                return Ack(lease)
            return Park(lease, (child.id,)) if draw < 0.05 else Ack(lease)
        ends: list[Settlement] = [Fail(lease, "no"), Retry(lease), Release(lease), Cancelled(lease)]
        return Ack(lease) if draw < 0.8 else self.chance.choice(ends)

    async def meddle(self, driver: PostgresDriver, _: str) -> None:
        ids = self.chance.sample(self.ids[-200:], min(3, len(self.ids[-200:])))
        if not ids:
            return
        match self.chance.randint(0, 4):
            case 0:
                await driver.cancel(ids)
            case 1 | 2:
                await driver.requeue(ids)
            case 3:
                answers = await driver.delete(ids)
                self.deleted |= {answer.id for answer in answers if isinstance(answer, Deleted)}
            case 4:
                await driver.speculate(ids[0])

    async def keep_time(self, driver: PostgresDriver, _: str) -> None:
        await driver.reclaim(20)
        await driver.promote(50)
        await driver.prune(30)


async def drain(driver: PostgresDriver) -> None:
    """Everything that can run runs, and everything that is owed is carried out."""
    for _ in range(500):
        await driver.reclaim()
        owed = (await driver.promote()).count
        jobs = (await driver.reserve(claim(limit=100))).jobs
        await driver.settle([Ack(job.lease) for job in jobs])
        counts = await driver.count()
        if not jobs and not owed and not sum(one.running for one in counts.values()):
            return
        await asyncio.sleep(0 if jobs else 0.05)
    raise AssertionError("it never comes to rest")


def wrong(jobs: dict[str, JobRecord], deleted: set[str]) -> list[str]:
    """What cannot be at rest: a job that waits for nothing, and counts that are not those of the children.

    A child of a parent that is over may be deleted. Its parent keeps it in its counts.
    """
    found = []
    for job in jobs.values():
        kids = [other for other in jobs.values() if parent_of(other) == job.id]
        open_ = sum(kid.state not in TERMINAL for kid in kids)
        failed = sum(kid.state is JobState.FAILED and not bonds_of(kid).optional for kid in kids)
        family = family_of(job)
        gone = family.total - len(kids)
        if lost := {name for name in family.failures if name not in jobs} - deleted:
            found.append(f"{job.id} {job.state} has lost its failed children {lost}")
        if family.open != open_ or not failed <= family.failed <= failed + gone:
            found.append(f"{job.id} {job.state} has counted {family}, and {open_} are open, {failed} failed")
        waits = [one for name in bonds_of(job).after if (one := jobs.get(name)) and one.state not in TERMINAL]
        if job.state not in TERMINAL and not open_ and not waits:
            found.append(f"{job.id} is {job.state} and waits for nothing: {job.bonds} {family}")
        if job.state in TERMINAL and open_:
            found.append(f"{job.id} is {job.state} with {open_} open children")
    return found


@pytest.mark.more("hundreds of jobs")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_mix_of_verbs_leaves_a_family_waiting(store_url: str, seed: int) -> None:
    """Two steps may meet in a deadlock, which the driver repeats (decision 0028): no call may fail of it."""
    hands = Hands(seed)
    drivers = [await PostgresDriver.from_url(store_url).open() for _ in range(4)]
    async with asyncio.TaskGroup() as tasks:
        for number in range(12):
            tasks.create_task(hands.keep(drivers[number % 4], f"worker-{number}"))
    await drain(drivers[0])
    jobs = {job.id: job for job in await find_all(drivers[0])}
    for driver in drivers:
        await driver.close()

    assert not hands.errors
    assert wrong(jobs, hands.deleted) == []


async def test_a_workflow_exists_with_the_commit_of_the_caller(store_url: str, database_url: str) -> None:
    """Y25: on an async and on a blocking connection, and not after a rollback."""
    async with PostgresDriver.from_url(store_url) as driver:
        root, gone = group(), group()
        kids = children(root, 2)
        connection = await asyncpg.connect(database_url)
        async with connection.transaction():
            answers = await driver.enqueue_in([root, *kids, last := after(root)], tx=connection)
            assert [one.result.value for one in answers] == ["blocked", "created", "created", "blocked"]
            assert await driver.get([root.id, last.id]) == [None, None]
        await connection.close()
        with psycopg.connect(database_url) as blocking:
            driver.enqueue_blocking([gone, *children(gone, 2)], tx=blocking)
            blocking.rollback()
            more = children(root, 1)
            driver.enqueue_blocking(more, tx=blocking)
        own = group()
        driver.enqueue_blocking([own, *children(own, 1)])

        assert await driver.get([gone.id]) == [None]
        page = await driver.find(Query(parent=root.id))
        assert [job.id for job in page.jobs] == [job.id for job in [*kids, *more]]
        taken = (await driver.reserve(claim(limit=10))).jobs
        assert len(taken) == 4
        async with driver.transaction(taken[0].lease):  # counted with the commit of the handler
            pass
        await driver.settle([Ack(job.lease) for job in taken[1:]])
        [record, released] = await driver.get([root.id, last.id])
        assert record is not None
        assert released is not None
        assert (record.state, released.state) == (JobState.COMPLETED, JobState.READY)
