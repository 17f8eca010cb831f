"""Families at rest, after long random walks: nothing is lost, nothing fires early, every count is right."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random  # noqa: TID251 - a seed replays the walk

import pytest
from msgspec.structs import replace

from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import Claim, Query, Resolution
from taskharbor.errors import ConflictError, InvalidArgument
from taskharbor.model.bonds import Bonds, When
from taskharbor.model.entropy import Entropy
from taskharbor.model.family_steps import is_success, never_runs
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.settlement import Ack, Cancelled, Fail, Park, Release, Retry, Settlement, Stalled
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.invariants import check_families

SECOND = timedelta(seconds=1)
START = datetime(2093, 5, 17, tzinfo=UTC)
STEPS = 150


class Walk:
    """One random walk through the verbs; `seed` replays it."""

    def __init__(self, driver: MemoryDriver, seed: int) -> None:
        self.driver = driver
        self.random = Random(seed)
        self.entropy = Entropy(seed)
        self.now = START
        self.held: list[JobRecord] = []
        self.ids: list[str] = []
        self.has_requeued = False
        self.acts: list[Callable[[], Awaitable[None]]] = [
            *[self.enqueue] * 5, *[self.claim] * 5, *[self.settle] * 6, self.cancel,
            self.resolve, self.move_on, self.promote,
        ]  # fmt: skip
        if seed % 2:
            self.acts += [self.requeue] * 2

    async def step(self) -> None:
        act = self.random.choice(self.acts)
        with suppress(ConflictError, InvalidArgument):  # a parent that is over: refused as a whole
            await act()

    async def enqueue(self) -> None:
        parent = self.random.choice([None, *self.ids[-6:]])
        siblings: list[str] = []
        new: list[NewJob] = []
        if self.random.random() < 0.5 and parent is not None:
            page = await self.driver.find(Query(parent=parent), now=self.now)
            siblings = [job.id for job in page.jobs]
        for _ in range(self.random.randint(1, 4)):
            job = NewJob(
                id=self.entropy.job_id(self.now), type="t", max_stalls=2, bonds=self.bonds(parent, siblings)
            )
            siblings.append(job.id)
            new.append(job)
        await self.driver.enqueue(new, now=self.now)
        self.ids += [job.id for job in new]

    def bonds(self, parent: str | None, siblings: list[str]) -> Bonds:
        chance = self.random.random
        count = min(len(siblings), self.random.choice([0, 0, 1, 2]))
        whens: list[When] = ["success", "success", "over", "failure"]
        return Bonds(
            parent=parent,
            after=tuple(self.random.sample(siblings, count)),
            when=self.random.choice(whens[: 4 if count else 3]),
            done_by=self.random.choice(["worker", "worker", "worker", "call", "children"]),
            tolerate=self.random.choice([0, 1, None]),
            fail_fast=chance() < 0.3,
            optional=chance() < 0.2,
            within=20 * SECOND if chance() < 0.1 else None,
        )

    async def claim(self) -> None:
        claim = Claim(queues=("default",), worker_id="w", limit=3, lease_for=10 * SECOND)
        claimed = await self.driver.reserve(claim, now=self.now)
        for job in claimed.jobs:
            await self.check_start(job)
        self.held += claimed.jobs

    async def check_start(self, job: JobRecord) -> None:
        """What a job comes after has ended as it needs. What was released before a requeue stays released."""
        assert job.bonds is not None
        others = [one for one in await self.driver.get(job.bonds.after, now=self.now) if one is not None]
        if job.starts == 1 and not self.has_requeued:
            assert all(one.state.is_terminal for one in others), job
            assert never_runs(job.bonds.when, others, is_last=True) is None, job
        assert job.bonds.deadline is None or job.bonds.deadline > self.now

    async def settle(self) -> None:
        if not self.held:
            return
        job = self.held.pop(self.random.randrange(len(self.held)))
        page = await self.driver.find(Query(parent=job.id), now=self.now)
        own = [child.id for child in page.jobs]
        lease = job.lease
        ends: list[Settlement] = [
            Ack(lease, b"r"), Ack(lease), Ack(lease), Fail(lease, "x"), Retry(lease), Stalled(lease),
            Release(lease), Cancelled(lease),
            Park(lease, tuple(own[:3])) if own else Park(lease, delay=SECOND),
        ]  # fmt: skip
        await self.driver.settle([self.random.choice(ends)], now=self.now)

    async def cancel(self) -> None:
        if self.ids:
            await self.driver.cancel([self.random.choice(self.ids)], now=self.now)

    async def requeue(self) -> None:
        if self.ids:
            self.has_requeued = True
            await self.driver.requeue(self.random.sample(self.ids, 1), now=self.now)

    async def resolve(self) -> None:
        if self.ids:
            error = self.random.choice([None, None, "no"])
            await self.driver.resolve(
                [Resolution(id=self.random.choice(self.ids), error=error)], now=self.now
            )

    async def move_on(self) -> None:
        self.now += self.random.choice([SECOND, 4 * SECOND])

    async def promote(self) -> None:
        await self.driver.promote(now=self.now)

    async def all_jobs(self) -> list[JobRecord]:
        """Everything, once nothing is owed any more."""
        while (await self.driver.promote(now=self.now)).count:
            pass
        jobs: list[JobRecord] = []
        query = Query(limit=1000)
        while True:
            page = await self.driver.find(query, now=self.now)
            jobs += page.jobs
            if page.next_cursor is None:
                return jobs
            query = replace(query, cursor=page.next_cursor)


def check_reasons(jobs: list[JobRecord]) -> None:
    """Nobody is blocked whose reason is gone, and nobody waits who can never run."""
    by_id = {job.id: job for job in jobs}
    for job in jobs:
        if job.state is not JobState.BLOCKED:
            continue
        assert job.family is not None
        assert job.bonds is not None
        after = [by_id[name] for name in job.bonds.after]
        is_waiting = any(not other.state.is_terminal for other in after)
        waits_for_call = job.bonds.done_by == "call" and not job.family.is_done
        assert is_waiting or waits_for_call or job.family.open, job
        if is_waiting and not job.family.is_done and job.starts == 0 and job.bonds.when == "success":
            assert all(is_success(other) for other in after if other.state.is_terminal), job


@pytest.mark.parametrize("seed", range(24))
async def test_a_random_walk_leaves_no_family_behind(seed: int) -> None:
    async with MemoryDriver() as driver:
        walk = Walk(driver, seed)
        for step in range(STEPS):
            await walk.step()
            if step % 15 == 0:
                jobs = await walk.all_jobs()
                check_families(jobs)
                check_reasons(jobs)
        await drain(walk)

        over = await walk.all_jobs()
        check_families(over)
        assert [job for job in over if not job.state.is_terminal] == []


async def drain(walk: Walk) -> None:
    """Run everything to its end: every lease runs out or is settled, every call is made."""
    for _ in range(400):
        walk.now += 30 * SECOND
        walk.held.clear()
        await walk.claim()
        if walk.held:
            await walk.driver.settle([Ack(job.lease) for job in walk.held], now=walk.now)
        jobs = await walk.all_jobs()
        calls = [
            job.id for job in jobs if not job.state.is_terminal and job.bonds and job.bonds.done_by == "call"
        ]
        if calls:
            await walk.driver.resolve([Resolution(id=job_id) for job_id in calls], now=walk.now)
        if all(job.state.is_terminal for job in await walk.all_jobs()):
            return
