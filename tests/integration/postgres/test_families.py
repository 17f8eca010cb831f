"""Families under real concurrency: callbacks fire once, nothing waits for ever, the server finds no deadlock.

`TASKHARBOR_RACE_SECONDS` makes a run longer, thirty acts a second; `TASKHARBOR_RACE_SEEDS`: how many runs.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import asyncpg
import psycopg
import pytest

from taskharbor.drivers.messages import Deleted, Query, Resolution, Settled
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.errors import BrokenBond, LeaseLost, TaskHarborError
from taskharbor.model.family_steps import bonds_of, family_of, parent_of
from taskharbor.model.job import JobRecord, Lease, NewJob, Note
from taskharbor.model.settlement import Ack, Cancelled, Fail, Park, Release, Retry, Settlement
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.testing.conformance.kit import claim, find_all, new_job
from taskharbor.testing.conformance.relatives import after, bound, children, group
from tests.integration.postgres.test_deadlocks import deadlocks

ACTS = int(30 * float(os.environ.get("TASKHARBOR_RACE_SECONDS", "4")))
SEEDS = range(1, 1 + int(os.environ.get("TASKHARBOR_RACE_SEEDS", "2")))
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
        self.calls: list[list[NewJob]] = []
        self.roots: list[NewJob] = []
        self.ids: list[str] = []
        self.leases: dict[str, Lease] = {}
        self.verbs: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.deleted: set[str] = set()

    async def keep(self, driver: PostgresDriver, name: str) -> None:
        acts = [self.send, self.work, self.work, self.work, self.work, self.meddle, self.keep_time]
        while not self.is_over:
            await self.act(self.chance.choice(acts), driver, name)

    async def beat(self, driver: PostgresDriver, name: str) -> None:
        """Heartbeats of many jobs at once, as long as the others act."""
        while not self.is_over:
            await self.act(self.extend, driver, name)
            await asyncio.sleep(0.01)

    @property
    def is_over(self) -> bool:
        return self.verbs.total() - self.verbs["extend"] >= ACTS

    async def act(
        self, act: Callable[[PostgresDriver, str], Awaitable[None]], driver: PostgresDriver, name: str
    ) -> None:
        try:
            await act(driver, name)
        except BrokenBond:  # a parent that is over by now
            pass
        except TaskHarborError as error:
            self.errors[f"{act.__name__}: {error}"] += 1
        self.verbs[act.__name__] += 1
        await asyncio.sleep(0)

    # ------------------------------------------------------------------ producers

    async def send(self, driver: PostgresDriver, _: str) -> None:
        draw = self.chance.random()
        if self.calls and draw < 0.2:  # the same call again, as after a lost answer
            jobs = self.chance.choice(self.calls[-10:])
        elif self.roots and draw < 0.5:  # more children, or more that comes after
            some = self.chance.sample(self.roots[-10:], min(2, len(self.roots[-10:])))
            jobs = [job for root in some for job in (*children(root, 2), after(root, when="over"))]
        else:
            jobs = self.workflow()
            self.calls.append(jobs)
        self.ids += [job.id for job in jobs]
        await driver.enqueue(jobs)

    def workflow(self) -> list[NewJob]:
        draw, once = self.chance.random, b"%d" % self.chance.randint(0, 50)
        root = group(
            tolerate=self.chance.choice((0, 1, None)),
            fail_fast=draw() < 0.3,
            idempotency_key=once if draw() < 0.3 else None,
        )
        below = bound(parent=root.id, done_by="children")
        first, second = children(root, 2, optional=draw() < 0.3)
        event = bound(parent=root.id, done_by="call", optional=True)
        jobs = [root, below, first, second, *children(below, 3), after(first, second, when="over"), event]
        jobs += [after(first), after(root, when="over"), after(root, when="failure"), new_job()]
        jobs.append(after(jobs[-1], jobs[-2], when="over"))
        if draw() < 0.4:
            jobs.append(new_job(key=b"%d" % self.chance.randint(0, 2)))
        self.roots.append(root)
        return jobs

    # ------------------------------------------------------------------ workers

    async def work(self, driver: PostgresDriver, name: str) -> None:
        wanted = claim(limit=8, worker_id=name, lease_for=LEASE)
        jobs = (await driver.reserve(wanted)).jobs
        self.leases |= {job.id: job.lease for job in jobs}
        if jobs and self.chance.random() < 0.4:
            await driver.extend_leases([job.lease for job in jobs], LEASE)
        jobs = [job for job in jobs if self.chance.random() > 0.1]
        if jobs and self.chance.random() < 0.2:
            await self.end_in_transaction(driver, jobs.pop())
        settlements = [await self.end(driver, job) for job in jobs]
        for answer in (await driver.exchange(settlements, wanted)).settled:
            assert isinstance(answer, Settled | LeaseLost)
        for job in jobs:
            self.leases.pop(job.id, None)

    async def end_in_transaction(self, driver: PostgresDriver, job: JobRecord) -> None:
        with suppress(LeaseLost):
            async with driver.transaction(job.lease):
                pass

    async def end(self, driver: PostgresDriver, job: JobRecord) -> Settlement:
        lease, draw = job.lease, self.chance.random()
        if draw < 0.15 and job.starts == 1 and job.key is None:  # it becomes a parent while it runs
            kids = [bound(parent=job.id) for _ in range(3)]
            self.ids += [kid.id for kid in kids]
            try:
                await driver.enqueue(kids, by=lease)
            except LeaseLost:
                return Ack(lease)
            return Park(lease, tuple(kid.id for kid in kids)) if draw < 0.08 else Ack(lease)
        if draw < 0.2:
            await driver.note([Note(f"step {self.chance.randint(0, 3)}", b"1", lease=lease)])
        ends: list[Settlement] = [Fail(lease, "no"), Retry(lease), Release(lease), Cancelled(lease)]
        return Ack(lease) if draw < 0.8 else self.chance.choice(ends)

    async def extend(self, driver: PostgresDriver, _: str) -> None:
        leases = self.chance.sample(list(self.leases.values()), min(20, len(self.leases)))
        await driver.extend_leases(leases, LEASE)

    # ------------------------------------------------------------------ everybody else

    async def meddle(self, driver: PostgresDriver, _: str) -> None:
        ids = self.chance.sample(self.ids[-200:], min(self.chance.randint(1, 8), len(self.ids[-200:])))
        if not ids:
            return
        match self.chance.randint(0, 6):
            case 0:
                await driver.cancel(ids)
            case 1 | 2:
                await driver.requeue(ids)
            case 3:
                answers = await driver.delete(ids)
                self.deleted |= {answer.id for answer in answers if isinstance(answer, Deleted)}
            case 4:
                await driver.speculate(ids[0])
            case 5:
                await driver.cancel([root.id for root in self.roots[-2:]])
            case 6:
                await driver.resolve([Resolution(id=job_id) for job_id in ids])

    async def keep_time(self, driver: PostgresDriver, _: str) -> None:
        await driver.reclaim(20)
        await driver.promote(50)
        await driver.prune(30)


async def drain(driver: PostgresDriver) -> None:
    """Everything that can run runs, and everything that is owed is carried out."""
    for _ in range(500):
        await driver.reclaim()
        owed = (await driver.promote()).count
        await resolve_all(driver)
        jobs = (await driver.reserve(claim(limit=100))).jobs
        await driver.settle([Ack(job.lease) for job in jobs])
        counts = await driver.count()
        if not jobs and not owed and not sum(one.running for one in counts.values()):
            return
        await asyncio.sleep(0 if jobs else 0.05)
    raise AssertionError("it never comes to rest")


async def resolve_all(driver: PostgresDriver) -> None:
    """Everything that waits for a call gets it."""
    waiting = await find_all(driver, Query(states=(JobState.BLOCKED,)))
    events = [Resolution(id=job.id) for job in waiting if bonds_of(job).done_by == "call"]
    if events:
        await driver.resolve(events)


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
@pytest.mark.parametrize("seed", SEEDS)
async def test_no_mix_of_verbs_deadlocks_or_leaves_a_family_waiting(
    store_url: str, database_url: str, seed: int
) -> None:
    """With heartbeats, repeated calls, transactions of handlers, and cancels and retries of several jobs."""
    before = await deadlocks(database_url)
    hands = Hands(seed)
    drivers = [await PostgresDriver.from_url(store_url).open() for _ in range(4)]
    async with asyncio.TaskGroup() as tasks:
        for number in range(12):
            tasks.create_task(hands.keep(drivers[number % 4], f"worker-{number}"))
        for driver in drivers[:2]:
            tasks.create_task(hands.beat(driver, "heart"))
    await drain(drivers[0])
    jobs = {job.id: job for job in await find_all(drivers[0])}
    for driver in drivers:
        await driver.close()
    await asyncio.sleep(0.2)  # for the backends to end

    assert not hands.errors
    assert wrong(jobs, hands.deleted) == []
    assert await deadlocks(database_url) == before


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
