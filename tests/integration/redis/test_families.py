"""Families while several processes end their children: every callback fires once, also after a kill."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import Claim, Query, Reclaimed
from taskharbor.drivers.redis.attempts import Attempts
from taskharbor.drivers.redis.primary import Primary
from taskharbor.errors import DriverUnavailable
from taskharbor.model.bonds import Bonds
from taskharbor.model.entropy import id_bytes
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import START, new_id
from tests.integration.sqlite.test_families import WiderWalk
from tests.unit.drivers.memory.test_families import SECOND, drain

WORKER = """
import asyncio, sys
from datetime import timedelta
from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim, Reclaimed
from taskharbor.drivers.redis.attempts import Attempts
from taskharbor.drivers.redis.primary import Primary
from taskharbor.errors import DriverUnavailable
from taskharbor.model.settlement import Ack, Fail

async def main(url, name):
    claim = Claim(queues=("default",), worker_id=name, limit=7, lease_for=timedelta(seconds=1))
    async with connect(url) as driver:
        jobs = (await driver.reserve(claim)).jobs
        while True:
            for job in jobs:
                print(job.type, job.id, flush=True)
            ends = [Fail(job.lease, "no") if job.type == "bad" else Ack(job.lease, b"r") for job in jobs]
            jobs = (await driver.exchange(ends, claim)).claimed
            if not jobs:
                await asyncio.sleep(0.01)

asyncio.run(main(*sys.argv[1:]))
"""


async def start_worker(url: str, name: str) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, url, name, stdout=PIPE)


async def read_line(worker: Process) -> str:
    """What a worker runs next; it waits until there is something."""
    assert worker.stdout is not None
    return (await worker.stdout.readline()).decode().strip()


async def read_started(worker: Process, started: Counter[str]) -> None:
    """Count what a worker runs, until it is gone."""
    while line := await read_line(worker):
        started[line] += 1
    await worker.wait()


def group_with_callback(size: int) -> list[NewJob]:
    group = NewJob(id=new_id(), type="group", bonds=Bonds(done_by="children", tolerate=1))
    types = ["child"] * (size - 1) + ["bad"]
    children = [NewJob(id=new_id(), type=name, bonds=Bonds(parent=group.id)) for name in types]
    callback = NewJob(id=new_id(), type="callback", bonds=Bonds(after=(group.id,)))
    return [group, *children, callback]


async def are_over(driver: Driver, jobs: list[NewJob]) -> list[JobRecord]:
    """These jobs, once all of them are over."""
    async with asyncio.timeout(60):
        while True:
            records = [job for job in await driver.get([job.id for job in jobs]) if job is not None]
            if all(job.state.is_terminal for job in records):
                return records
            await driver.reclaim()
            await asyncio.sleep(0.02)


async def test_many_processes_end_many_groups_and_every_callback_fires_once(store_url, driver):
    groups = [group_with_callback(25) for _ in range(20)]
    for jobs in groups:
        await driver.enqueue(jobs)
    workers = [await start_worker(store_url, f"w{number}") for number in range(4)]
    started: Counter[str] = Counter()
    readers = [asyncio.create_task(read_started(worker, started)) for worker in workers]
    try:
        over = await are_over(driver, [job for jobs in groups for job in jobs])
    finally:
        for worker in workers:
            worker.kill()
        await asyncio.gather(*readers)

    callbacks = Counter({name: count for name, count in started.items() if name.startswith("callback")})
    assert callbacks == Counter(f"callback {jobs[-1].id}" for jobs in groups)
    assert {job.state.value for job in over if job.type != "bad"} == {"completed"}
    counts = {(of.total, of.open, of.failed) for job in over if job.type == "group" and (of := job.family)}
    assert counts == {(25, 0, 1)}


async def test_a_worker_that_is_killed_holds_no_group_for_ever(store_url, driver):
    jobs = group_with_callback(400)
    await driver.enqueue(jobs)
    victim = await start_worker(store_url, "victim")
    for _ in range(150):
        await read_line(victim)
    victim.kill()
    await victim.wait()
    survivor = await start_worker(store_url, "survivor")
    started: Counter[str] = Counter()
    reader = asyncio.create_task(read_started(survivor, started))
    try:
        over = await are_over(driver, jobs)
    finally:
        survivor.kill()
        await reader

    assert started[f"callback {jobs[-1].id}"] == 1
    assert {job.state.value for job in over if job.type != "bad"} == {"completed"}
    [family] = [job.family for job in over if job.type == "group"]
    assert family is not None
    assert (family.total, family.open, family.failed) == (400, 0, 1)


async def test_children_are_added_while_others_of_the_same_group_end(driver):
    """The count of open children may change under a step that adds some: neither waits for the other."""
    group = NewJob(id=new_id(), type="group", bonds=Bonds(done_by="call"))
    await driver.enqueue([group])
    claim = Claim(queues=("default",), worker_id="w", limit=5, lease_for=timedelta(minutes=1))
    ended = 0

    async def add() -> None:
        for _ in range(10):
            await driver.enqueue(
                [NewJob(id=new_id(), type="child", bonds=Bonds(parent=group.id)) for _ in range(50)]
            )

    async def work(other: Driver) -> None:
        nonlocal ended
        async with asyncio.timeout(60):
            while ended < 500:
                jobs = (await other.reserve(claim)).jobs
                answers = await other.settle([Ack(job.lease) for job in jobs]) if jobs else []
                ended += len(answers)

    async with driver.another() as one, driver.another() as two:
        await asyncio.gather(add(), work(one), work(two))
        record = (await one.get([group.id]))[0]

    assert record is not None
    assert record.family is not None
    assert (record.family.total, record.family.open) == (500, 0)


async def test_the_deadline_of_a_lost_job_does_not_hold_up_claims(own_server, admin):
    async with connect(own_server.url) as driver:
        lost = NewJob(id=new_id(), type="lost", bonds=Bonds(within=SECOND))
        await driver.enqueue([lost], now=START)
        packed = id_bytes(lost.id)
        admin.hdel("{taskharbor}:data", b"h" + packed, b"b" + packed)
        claim = Claim(queues=("default",), worker_id="w")
        assert (await driver.reserve(claim, now=START + 2 * SECOND)).jobs == []

    assert admin.zcard("{taskharbor}:deadlines") == 0
    assert admin.hget("{taskharbor}:data", "t") is None


@pytest.mark.parametrize("settles", [False, True])
async def test_what_the_sweep_of_a_claim_ended_is_reported_though_the_claim_fails(
    driver, monkeypatch, settles
):
    root = NewJob(id=new_id(), type="group", bonds=Bonds(done_by="children"))
    child = NewJob(id=new_id(), type="child", max_stalls=1, bonds=Bonds(parent=root.id))
    await driver.enqueue([root, child, NewJob(id=new_id(), type="plain")], now=START)
    short, long = [
        Claim(queues=("default",), worker_id="w", lease_for=lease_for) for lease_for in (SECOND, 9 * SECOND)
    ]
    [held] = (await driver.reserve(short, now=START)).jobs
    [plain] = (await driver.reserve(long, now=START)).jobs
    assert held.id == child.id
    ends = [Ack(plain.lease)] if settles else []
    with monkeypatch.context() as patch:
        goes_away_after_a_sweep(patch, driver._attempts, driver.primary)
        if settles:
            answer = await driver.exchange(ends, short, now=START + 2 * SECOND)
            assert isinstance(answer.error, DriverUnavailable)
            ended = answer.ended
        else:
            with pytest.raises(DriverUnavailable):
                await driver.reserve(short, now=START + 2 * SECOND)
            ended = ()
    ended += (await driver.reserve(short, now=START + 2 * SECOND)).ended
    ended += (await driver.promote(now=START + 2 * SECOND)).ended
    assert [end.id for end in ended] == [root.id]


def goes_away_after_a_sweep(patch: pytest.MonkeyPatch, attempts: Attempts, primary: Primary) -> None:
    reclaim = attempts.reclaim_these

    async def away(*_: object, **__: object) -> None:
        raise DriverUnavailable("the server is away", done=False)

    async def reclaim_and_go(ids: Sequence[str], now: datetime | None) -> list[Reclaimed]:
        answers = await reclaim(ids, now)
        patch.setattr(primary, "_tried", away)
        return answers

    patch.setattr(attempts, "reclaim_these", reclaim_and_go)


@pytest.mark.parametrize("times", [1, 2])
async def test_a_large_stop_leaves_the_jobs_of_the_memory_driver(driver, times):
    """Waiting children are stopped by a script, the others among them by the rules in Python."""
    ids = [new_id() for _ in range(1000)]
    async with MemoryDriver() as model:
        expected, found = [await stopped_family(one, ids, times) for one in (model, driver)]
    assert found == expected
    assert {job.state for job in found} == {JobState.CANCELLED, JobState.COMPLETED}


async def stopped_family(driver: Driver, ids: Sequence[str], times: int) -> list[JobRecord]:
    root = NewJob(id=ids[0], type="root", bonds=Bonds(done_by="children"))
    jobs = [family_member(root.id, number, job_id) for number, job_id in enumerate(ids[1:])]
    await driver.enqueue([root, *jobs[:300]], now=START)
    await driver.enqueue(jobs[300:], now=START)
    queues = ("default", "other")
    claim = Claim(queues=queues, worker_id="w", limit=40, lease_for=60 * SECOND)
    held = (await driver.reserve(claim, now=START)).jobs
    again = [Retry(job.lease, reason="x", delay=SECOND) for job in held[:9]]
    await driver.settle([*again, *(Ack(job.lease) for job in held[9:20])], now=START)
    for _ in range(times):
        await driver.cancel([root.id], now=START + SECOND)
        while (await driver.promote(now=START + SECOND)).count:
            pass
    claimed = (await driver.reserve(replace(claim, limit=1000), now=START + SECOND)).jobs
    await driver.settle([Ack(job.lease) for job in [*held[20:], *claimed]], now=START + SECOND)
    while (await driver.promote(now=START + SECOND)).count or claimed:
        claimed = (await driver.reserve(replace(claim, limit=1000), now=START + SECOND)).jobs
        await driver.settle([Ack(job.lease) for job in claimed], now=START + SECOND)
    page = await driver.find(Query(limit=1000), now=START + SECOND)
    return [replace(job, seq=0, fence=0) for job in sorted(page.jobs, key=lambda job: job.id)]


def family_member(root_id: str, number: int, job_id: str) -> NewJob:
    """Mostly a child and nothing else; now and then one with a time, a lane, a queue or a bond of its own."""
    odd: dict[int, dict[str, Any]] = {
        50: {"run_at": START + 99 * SECOND},
        51: {"queue": "other", "requires": "gpu"},
        52: {"bonds": Bonds(parent=root_id, when="over")},
        53: {"bonds": Bonds(parent=root_id, within=3600 * SECOND)},
        54: {"bonds": Bonds(parent=root_id, done_by="children")},
    }
    fields: dict[str, Any] = {"type": "child", "bonds": Bonds(parent=root_id), **odd.get(number % 200, {})}
    return NewJob(id=job_id, **fields)


class SameWalk(WiderWalk):
    """A walk that takes the same steps on every store."""

    def __init__(self, driver: Driver, seed: int) -> None:
        super().__init__(driver, seed)
        self.acts = [
            act for act in self.acts if act != self.speculate
        ]  # the id of a copy is made from its seq

    async def prune(self) -> None:
        """All that may go: which goes first is the store's affair."""
        await self.driver.prune(1000, now=self.now)

    async def seen(self) -> list[JobRecord]:
        """All jobs by id, without what each store makes in its own way."""
        jobs = sorted(await self.all_jobs(), key=lambda job: job.id)
        return [replace(job, seq=0, fence=0, history=()) for job in jobs]


MORE = pytest.mark.more("long series: each seed is another walk")


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=MORE) for seed in range(2, 12))])
async def test_a_random_walk_leaves_the_jobs_of_the_memory_driver(driver, seed):
    async with MemoryDriver() as model:
        walks = [SameWalk(one, seed) for one in (model, driver)]
        if seed % 3:
            keep = [timedelta(0), 5 * SECOND][seed % 2]
            retention = Retention(completed=keep, cancelled=keep)
            for walk in walks:
                await walk.driver.configure_queue(QueueSettings(queue="*", retention=retention))
        for step in range(120):
            for walk in walks:
                await walk.step()
            if step % 20 == 0:
                expected, found = [await walk.seen() for walk in walks]
                assert found == expected
        for walk in walks:
            await drain(walk)
        expected, found = [await walk.seen() for walk in walks]
        assert found == expected
