"""Families over several queues of a cluster: each is kept in one slot, and its queues have a part there."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import redis
from msgspec.structs import replace

from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import Claim, Query
from taskharbor.drivers.redis.cluster import gates
from taskharbor.errors import BrokenBond, DriverUnavailable, LeaseLost, RateLimited
from taskharbor.model.bonds import Bonds
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Fail
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    MINUTE,
    SECOND,
    START,
    get_one,
    new_id,
    new_job,
    reserve,
    running,
    settle_one,
    state_of,
)
from taskharbor.testing.servers import cluster_url
from tests.integration.redis.test_families import (
    SameWalk,
    are_over,
    goes_away_after_a_sweep,
    read_line,
    read_started,
)
from tests.unit.drivers.memory.test_families import drain

FAR = ("far",)


def family(children: int = 1, queue: str = "far", **fields: object) -> list[NewJob]:
    """A group in the queue `kit` with its children in another queue."""
    root = new_job(bonds=Bonds(done_by="children"))
    return [root, *(new_job(queue=queue, bonds=Bonds(parent=root.id), **fields) for _ in range(children))]


# ------------------------------------------------------------------ where jobs are


async def test_every_key_of_a_family_lies_in_the_slot_of_its_first_job(driver):
    root = new_job(queue="home", bonds=Bonds(done_by="children"))
    pack = new_job(queue="far", bonds=Bonds(parent=root.id))
    ship = new_job(queue="farther", bonds=Bonds(parent=root.id, after=(pack.id,)))
    await driver.enqueue([root, pack, ship], now=START)
    [job] = await reserve(driver, queues=FAR)
    await settle_one(driver, Ack(job.lease))
    [last] = await reserve(driver, queues=("farther",))
    assert last.id == ship.id

    namespace = driver.address.namespace
    keys = set()
    for place in cluster_url().removeprefix("redis+cluster://").split(","):
        with redis.Redis(port=int(place.rpartition(":")[2])) as node:
            keys |= {key.decode() for key in node.keys(f"{{{namespace}*")}
    of_far = {key for key in keys if key.startswith(f"{{{namespace}:far}}")}
    assert of_far == {f"{{{namespace}:far}}:{part}" for part in ("data", "parts", "q:far:wake")} & of_far
    assert f"{{{namespace}:home}}:q:farther:leases" in keys


async def test_a_handle_that_knows_no_part_learns_of_it_with_its_next_claim(driver):
    async with driver.another() as other:
        assert await reserve(other, queues=FAR) == []
        await settle_one(other, Ack((await running(other, queue="far")).lease))
        jobs = family(2)
        await driver.enqueue(jobs, now=START)

        assert [job.id for job in await reserve(other, queues=FAR, limit=5)] == [jobs[1].id, jobs[2].id]


async def test_acks_that_meet_a_part_on_their_way_are_answered_once_and_truly(driver):
    """Also of a job that its queue forgets at once: nothing of it is left to look at."""
    await driver.configure_queue(
        QueueSettings(queue="far", retention=Retention(completed=timedelta(0))), now=START
    )
    async with driver.another() as other:
        mine = await running(other, queue="far")
        jobs = family()
        await driver.enqueue(jobs, now=START)

        answer = await other.exchange([Ack(mine.lease)], Claim(queues=FAR, worker_id="w"), now=START)

    assert [settled.state for settled in answer.settled] == [JobState.COMPLETED]
    assert [job.id for job in answer.claimed] == [jobs[1].id]


async def test_the_lease_of_a_job_in_a_part_leads_any_handle_to_it(driver):
    jobs = family(2)
    await driver.enqueue(jobs, now=START)
    first, second = await reserve(driver, queues=FAR, limit=2)

    async with driver.another() as other:
        [extended] = await other.extend_leases([first.lease], HOUR, now=START)
        assert extended.lease.job_id == first.id
        [settled] = await other.settle([Ack(first.lease)], now=START + MINUTE)
        assert settled.state is JobState.COMPLETED
        forged = msgspec.structs.replace(second.lease, token="0" * 32)
        [refused] = await other.settle([Ack(forged)], now=START)
        assert isinstance(refused, LeaseLost)

    await settle_one(driver, Ack(second.lease))
    assert await state_of(driver, jobs[0].id) is JobState.COMPLETED


async def test_a_part_that_the_slot_of_its_queue_has_forgotten_is_found_by_the_next_sweep(driver):
    jobs = family()
    await driver.enqueue(jobs, now=START)
    far = await driver._stores.of("far")
    await far.primary.command("DEL", far.keys.parts, far.keys.data, writes=True)

    async with driver.another() as other:
        assert await reserve(other, queues=FAR) == []
        await other.reclaim(now=START)
        assert [job.id for job in await reserve(other, queues=FAR)] == [jobs[1].id]


async def test_jobs_that_are_kept_apart_take_no_common_follower(driver):
    """They have no parent that would keep them together. Nothing is stored."""
    left, right = new_job(queue="left"), new_job(queue="right")
    await driver.enqueue([left, right], now=START)
    last = new_job(queue="left", bonds=Bonds(after=(left.id, right.id)))

    with pytest.raises(BrokenBond, match="common parent"):
        await driver.enqueue([last], now=START)
    assert await driver.get([last.id], now=START) == [None]


async def test_jobs_without_a_parent_are_kept_together_if_they_come_together(driver):
    left, right = new_job(queue="left", bonds=Bonds()), new_job(queue="right", bonds=Bonds())
    last = new_job(queue="farther", bonds=Bonds(after=(left.id, right.id)))
    await driver.enqueue([left, right, last], now=START)
    for job in await reserve(driver, queues=("right", "left"), limit=2):
        await settle_one(driver, Ack(job.lease))

    assert [job.id for job in await reserve(driver, queues=("farther",))] == [last.id]


async def test_an_idempotency_key_is_kept_where_its_queue_looks_for_it(driver):
    first = new_job(queue="left", bonds=Bonds(), idempotency_key=b"first")
    last = new_job(queue="right", bonds=Bonds(after=(first.id,)), idempotency_key=b"last")

    with pytest.raises(BrokenBond, match="idempotency key"):
        await driver.enqueue([first, last], now=START)
    assert await driver.get([first.id, last.id], now=START) == [None, None]
    [created, _] = await driver.enqueue([first, replace(last, idempotency_key=None)], now=START)
    [again] = await driver.enqueue([new_job(queue="left", idempotency_key=b"first")], now=START)
    assert again.id == created.id


# ------------------------------------------------------------------ a queue with parts is one queue


async def test_the_more_urgent_job_comes_first_wherever_it_is(driver):
    low, high = family(priority=-5), family(priority=5)
    plain = new_job(queue="far")
    other = new_job(queue="home", bonds=Bonds(done_by="children"))
    top = new_job(queue="far", priority=9, bonds=Bonds(parent=other.id))
    await driver.enqueue(low, now=START)
    await driver.enqueue([plain], now=START)
    await driver.enqueue(high, now=START)
    await driver.enqueue([other, top], now=START)

    first = [job.id for job in await reserve(driver, queues=FAR, limit=3)]
    assert first == [top.id, high[1].id, plain.id]
    assert [job.id for job in await reserve(driver, queues=FAR, limit=3)] == [low[1].id]


async def test_lanes_types_and_due_times_hold_over_all_parts(driver):
    gpu, due = family(requires="gpu"), family(type="due", run_at=START + MINUTE)
    await driver.enqueue(gpu, now=START)
    await driver.enqueue(due, now=START)
    await driver.enqueue([new_job(queue="far", type="due")], now=START)

    async def take(now=START, **fields):
        claim = Claim(queues=FAR, worker_id="w", lease_for=HOUR, **fields)
        return [job.id for job in (await driver.reserve(claim, now=now)).jobs]

    assert await take(types=("none",)) == []
    assert await take(lanes=("gpu",)) == [gpu[1].id]
    assert await take(lanes=("gpu",)) == []
    assert len(await take()) == 1
    assert await take() == []
    assert await take(now=START + MINUTE) == [due[1].id]


async def test_counts_and_listings_of_a_queue_have_what_is_in_its_parts(driver):
    jobs, plain = family(3), [new_job(queue="far") for _ in range(2)]
    await driver.enqueue(jobs, now=START)
    await driver.enqueue(plain, now=START + SECOND)
    ids = [job.id for job in (*jobs[1:], *plain)]

    assert (await driver.count(["far"], now=START))["far"].ready == 5
    assert {name: counts.total for name, counts in (await driver.count(now=START)).items()} == {
        "far": 5,
        "kit": 1,
    }
    infos = {info.queue: info for info in await driver.queues(now=START + SECOND)}
    assert infos["far"].counts.ready == 5
    assert infos["far"].oldest_ready_at == START
    found, cursor = [], None
    while True:
        page = await driver.find(Query(queue="far", limit=2, cursor=cursor), now=START)
        found += [job.id for job in page.jobs]
        if (cursor := page.next_cursor) is None:
            break
    assert found == ids


async def test_a_pause_and_other_settings_hold_in_every_part(driver):
    jobs = family(2)
    await driver.enqueue(jobs, now=START)
    await driver.configure_queue(QueueSettings(queue="far", paused=True, fail_queue="dead"), now=START)
    assert await reserve(driver, queues=FAR) == []

    async with driver.another() as other:
        await other.configure_queue(QueueSettings(queue="far", paused=False), now=START)
    [job, _] = await reserve(driver, queues=FAR, limit=2)
    await settle_one(driver, Fail(job.lease, "broken"))
    [failure] = await reserve(driver, queues=("dead",))
    assert failure.type == "taskharbor.failed"
    assert {info.queue: info.rules.fail_queue for info in await driver.queues(now=START)}["far"] == "dead"


async def test_max_running_of_a_queue_counts_what_runs_in_its_parts(driver):
    await driver.configure_queue(QueueSettings(queue="far", max_running=3), now=START)
    async with driver.another() as other:
        assert await reserve(other, queues=FAR) == []
        await driver.enqueue([new_job(queue="far") for _ in range(4)], now=START)
        await driver.enqueue(family(4), now=START)

        first = await reserve(driver, queues=FAR, limit=2)
        second = await reserve(other, queues=FAR, limit=5)
        assert (len(first), len(second)) == (2, 1)
        assert await reserve(driver, queues=FAR, limit=5) == []
        answer = await other.exchange(
            [Ack(first[0].lease)], Claim(queues=FAR, worker_id="w", limit=5), now=START
        )
        assert len(answer.claimed) == 1
        await driver.configure_queue(QueueSettings(queue="far", max_running=None), now=START)
        assert len(await reserve(other, queues=FAR, limit=9)) == 4


async def test_many_claimers_never_exceed_max_running_over_parts(driver):
    await driver.configure_queue(QueueSettings(queue="far", max_running=5), now=START)
    await driver.enqueue(family(20), now=START)
    await driver.enqueue([new_job(queue="far") for _ in range(20)], now=START)
    async with driver.another() as two, driver.another() as three:
        taken = await asyncio.gather(
            *(reserve(one, queues=FAR, limit=2) for one in (driver, two, three) for _ in range(3))
        )
    assert sum(map(len, taken)) == 5


async def test_an_execute_rate_of_a_queue_is_spent_by_its_parts(driver):
    rate = RateLimit(3, MINUTE)
    await driver.configure_queue(QueueSettings(queue="far", execute_rate=rate), now=START)
    await driver.enqueue(family(3), now=START)
    await driver.enqueue([new_job(queue="far") for _ in range(3)], now=START)

    assert len(await reserve(driver, queues=FAR, limit=2)) == 2
    async with driver.another() as other:
        assert len(await reserve(other, queues=FAR, limit=9)) == 1
        assert await reserve(other, queues=FAR, limit=9) == []
    assert len(await reserve(driver, queues=FAR, limit=9, now=START + 2 * MINUTE)) == 3


@pytest.mark.parametrize("limited", ["far", "*"])
async def test_enqueue_rates_are_spent_where_they_are_counted_and_given_back(driver, limited):
    rate = RateLimit(3, MINUTE)
    await driver.configure_queue(QueueSettings(queue=limited, enqueue_rate=rate), now=START)
    jobs = family(2)
    await driver.enqueue(jobs, now=START)
    await driver.enqueue(jobs, now=START)  # repeats spend nothing
    with pytest.raises(RateLimited):
        await driver.enqueue(family(2), now=START)
    with pytest.raises(BrokenBond):
        await driver.enqueue([new_job(queue="far", bonds=Bonds(parent=new_id()))], now=START)

    await driver.enqueue([new_job(queue="far")], now=START)
    with pytest.raises(RateLimited):
        await driver.enqueue([new_job(queue="far")], now=START)


async def test_a_part_whose_server_is_away_does_not_hold_up_the_rest_of_its_queue(driver, monkeypatch):
    jobs, plain = family(), new_job(queue="far")
    await driver.enqueue(jobs, now=START)
    await driver.enqueue([plain], now=START)

    async def away(*_: object, **__: object) -> None:
        raise DriverUnavailable("the server is away", done=False)

    home = await driver._stores.of("kit")
    with monkeypatch.context() as patch:
        patch.setattr(home.primary, "_tried", away)
        assert [job.id for job in await reserve(driver, queues=FAR, limit=5)] == [plain.id]
    assert [job.id for job in await reserve(driver, queues=FAR, limit=5)] == [jobs[1].id]


@pytest.mark.parametrize("server", ["own", "harbor"])
async def test_jobs_that_were_claimed_reach_their_worker_though_a_limit_can_be_counted_no_more(
    driver, monkeypatch, server
):
    """The server of the queue goes away before its rate is spent; that of the lock before the next slot."""
    rate = RateLimit(9, MINUTE)
    await driver.configure_queue(QueueSettings(queue="far", execute_rate=rate), now=START)
    await driver.enqueue(family(2), now=START)
    if server == "harbor":
        await driver.enqueue([new_job(queue="far")], now=START)
    own, home = await driver._stores.of("far"), await driver._stores.of("kit")

    async def away(*_: object, **__: object) -> None:
        raise DriverUnavailable("the server is away", done=False)

    with monkeypatch.context() as patch:
        for store in (own, home):
            exchange = store.counted.exchange

            async def exchange_and_go(*arguments: Any, exchange: Any = exchange) -> Any:
                answer = await exchange(*arguments)
                if answer.claimed:
                    patch.setattr((own if server == "own" else driver._harbor).primary, "_tried", away)
                    patch.setattr(gates, "_LOCK_MS", 0)
                return answer

            patch.setattr(store.counted, "exchange", exchange_and_go)
        jobs = await reserve(driver, queues=FAR, limit=5)
    assert len(jobs) == (2 if server == "own" else 1)
    running = await driver.get([job.id for job in jobs], now=START)
    assert {job.state for job in running if job} == {JobState.RUNNING}


@pytest.mark.parametrize("queues", [("kit",), ("kit", "far")])
async def test_what_the_sweep_of_a_claim_ended_is_reported_though_the_claim_fails(
    driver, monkeypatch, queues
):
    root, child = family(queue="kit", max_stalls=1)
    await driver.enqueue([root, child], now=START)
    await reserve(driver, queues=queues, lease_for=SECOND)
    home = await driver._stores.of("kit")
    with monkeypatch.context() as patch:
        goes_away_after_a_sweep(patch, home.attempts, home.primary)
        with pytest.raises(DriverUnavailable):
            await reserve(driver, queues=queues, now=START + MINUTE)
    wanted = Claim(queues=queues, worker_id="w")
    ended = [end for _ in range(2) for end in (await driver.reserve(wanted, now=START + MINUTE)).ended]
    assert [end.id for end in ended] == [root.id]


async def test_a_due_job_of_a_part_wakes_a_worker_of_its_queue(driver):
    await driver.enqueue(family(run_at=START + MINUTE), now=START)
    far = await driver._stores.of("far")
    wake = far.keys.queue("far").wake
    await far.primary.command("DEL", wake, writes=True)

    assert (await driver.promote(now=START + MINUTE)).count == 1
    assert await far.primary.command("LLEN", wake) == 1


# ------------------------------------------------------------------ beside memory, and among processes


class OverTwoQueues:
    """A driver whose jobs go to two queues, by their ids."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def enqueue(self, jobs: list[NewJob], **options: Any) -> object:
        spread = [replace(job, queue="far" if job.id[-1] in "01234567" else "default") for job in jobs]
        return await self._driver.enqueue(spread, **options)

    async def reserve(self, claim: Claim, **options: Any) -> object:
        """Deadlines first: of a deadline and an expired lease at one instant the store chooses the order."""
        await self._driver.promote(**options)
        return await self._driver.reserve(replace(claim, queues=("default", "far")), **options)


MORE = pytest.mark.more("long series: each seed is another walk")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=MORE) for seed in range(1, 8))])
async def test_a_random_walk_over_two_queues_leaves_the_jobs_of_the_memory_driver(driver, seed):
    async with MemoryDriver() as model:
        twins: list[Any] = [OverTwoQueues(one) for one in (model, driver)]
        walks = [SameWalk(one, seed) for one in twins]
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


WORKER = """
import asyncio, sys
from datetime import timedelta
from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim
from taskharbor.model.settlement import Ack, Fail

async def main(url, name, *queues):
    claim = Claim(queues=queues, worker_id=name, limit=7, lease_for=timedelta(seconds=2))
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


def group_over_queues(size: int) -> list[NewJob]:
    """Children in turn in three queues, one of which fails, and a callback in a fourth."""
    queues = ("home", "far", "farther")
    group = NewJob(id=new_id(), type="group", queue="home", bonds=Bonds(done_by="children", tolerate=1))
    types = ["child"] * (size - 1) + ["bad"]
    children = [
        NewJob(id=new_id(), type=name, queue=queues[number % 3], bonds=Bonds(parent=group.id))
        for number, name in enumerate(types)
    ]
    callback = NewJob(id=new_id(), type="callback", queue="last", bonds=Bonds(after=(group.id,)))
    return [group, *children, callback]


@pytest.mark.timeout(180)
async def test_processes_end_groups_over_queues_and_every_callback_fires_once_although_one_is_killed(
    driver_url, driver
):
    groups = [group_over_queues(24) for _ in range(8)]
    for jobs in groups:
        await driver.enqueue(jobs)
    started: Counter[str] = Counter()
    workers, readers = [], []
    try:
        for queues in (("home", "far"), ("farther", "far"), ("last", "home", "farther")):
            command = (sys.executable, "-c", WORKER, driver_url, f"w-{queues[0]}", *queues)
            workers.append(await asyncio.create_subprocess_exec(*command, stdout=PIPE))
            if len(workers) == 1:  # beside the others it might find nothing to be killed with
                started[await read_line(workers[0])] += 1
        for _ in range(4):
            started[await read_line(workers[0])] += 1
        workers[0].kill()
        readers = [asyncio.create_task(read_started(worker, started)) for worker in workers]
        over: list[JobRecord] = await are_over(driver, [job for jobs in groups for job in jobs])
    finally:
        for worker in workers[1:]:
            worker.kill()
        await asyncio.gather(*readers)

    callbacks = Counter({name: count for name, count in started.items() if name.startswith("callback")})
    assert callbacks == Counter(f"callback {jobs[-1].id}" for jobs in groups)
    assert {job.state.value for job in over if job.type != "bad"} == {"completed"}
    counts = {(of.total, of.open, of.failed) for job in over if job.type == "group" and (of := job.family)}
    assert counts == {(24, 0, 1)}
    assert (await get_one(driver, groups[0][0].id)).state is JobState.COMPLETED
