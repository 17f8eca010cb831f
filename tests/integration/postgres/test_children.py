"""Children that are nothing but that: settled as plain jobs are, and counted without a false zero."""

import asyncio
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from taskharbor.drivers.messages import Settled
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.errors import DriverUnavailable, LeaseLost
from taskharbor.model.job import JobRecord, Lease, NewJob
from taskharbor.model.settlement import Ack, Fail, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import QUEUE, claim
from taskharbor.testing.conformance.relatives import after, bound, children, group
from tests.integration.postgres.test_deadlocks import deadlocks

WORKER = """
import asyncio, sys
from datetime import UTC, datetime, timedelta
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import claim

async def work(url, name):
    wanted = claim(limit=5, worker_id=name, lease_for=timedelta(seconds=2))
    async with PostgresDriver.from_url(url) as driver:
        done = []
        print("up", flush=True)
        while True:
            answer = await driver.exchange([Ack(job.lease) for job in done], wanted)
            done = answer.claimed
            if not done:
                await driver.reclaim()
                await asyncio.sleep(0.01)

asyncio.run(work(*sys.argv[1:]))
"""


class Counted:
    """What a driver asks the server from now on: statements by name, and transactions."""

    def __init__(self, driver: PostgresDriver, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        lines = driver._connections
        names = {driver._sql[name]: name for name in ("exchange", "over_families")}
        rows, step = lines.rows, lines.step

        async def count_rows(statement: str, *arguments: Any, **options: Any) -> Any:
            self.asked.append(names.get(statement, "other"))
            return await rows(statement, *arguments, **options)

        async def count_steps(*arguments: Any, **options: Any) -> Any:
            self.asked.append("transaction")
            return await step(*arguments, **options)

        patch.setattr(lines, "rows", count_rows)
        patch.setattr(lines, "step", count_steps)

    def take(self) -> list[str]:
        taken, self.asked[:] = list(self.asked), []
        return taken


async def states(driver: PostgresDriver, *jobs: NewJob) -> list[JobState | None]:
    return [None if job is None else job.state for job in await driver.get([job.id for job in jobs])]


async def taken(driver: PostgresDriver, limit: int) -> list[JobRecord]:
    return (await driver.reserve(claim(limit=limit))).jobs


async def test_children_take_the_statement_of_plain_jobs(
    driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One exchange; where few are left a look behind it; and for the last one a step of the family."""
    root = group()
    kids = children(root, 1000)
    await driver.enqueue([root, *kids, last := after(root)])
    jobs = await taken(driver, 10)
    asked = Counted(driver, monkeypatch)

    answer = await driver.exchange([Ack(job.lease) for job in jobs], claim(limit=300))
    assert asked.take() == ["exchange"]
    assert len(answer.claimed) == 300
    answer = await driver.exchange([Ack(job.lease) for job in answer.claimed], claim(limit=690))
    assert asked.take() == ["exchange", "over_families"]
    await driver.settle([Ack(job.lease) for job in answer.claimed[1:]])
    asked.take()
    assert await states(driver, root, last) == [JobState.BLOCKED, JobState.BLOCKED]
    asked.take()
    done = await driver.exchange([Ack(answer.claimed[0].lease)], claim(limit=5))
    assert [end.id for end in done.ended] == [root.id]
    assert asked.take()[:2] == ["exchange", "transaction"]
    assert [job.id for job in done.claimed] == [
        last.id
    ]  # the rest of the claim is filled with what was released
    assert await states(driver, root) == [JobState.COMPLETED]


async def test_a_child_has_a_row_in_no_table_of_families(driver: PostgresDriver, database_url: str) -> None:
    """It gets one with the first bond more, and one that has completed by a set can be requeued."""
    root = group()
    kids = children(root, 3)
    await driver.enqueue([root, *kids])
    connection = await asyncpg.connect(database_url)
    await connection.execute(f"set search_path = {driver.address.identifier}")
    count = "select count(*) from family"
    assert await connection.fetchval(count) == 1
    jobs = await taken(driver, 3)
    assert [job.bonds for job in jobs] == [kid.bonds for kid in kids]
    assert {job.root for job in jobs} == {root.id}
    await driver.settle([Ack(jobs[0].lease), Retry(jobs[1].lease), Ack(jobs[2].lease)])
    assert await connection.fetchval("select sum(ended) from stripe") == 2
    view = await connection.fetchrow(
        "select parent, root, family from jobs where id = $1::text::uuid", root.id
    )
    assert '"open": 1' in view["family"]
    await driver.enqueue([bound(parent=root.id, after=(kids[0].id,))])
    assert await connection.fetchval(count) == 3
    await driver.requeue([kids[2].id])
    [record] = await driver.get([root.id])
    assert record is not None
    assert record.family is not None
    assert (record.family.total, record.family.open) == (4, 3)
    for _ in range(3):
        await driver.settle([Ack(job.lease) for job in await taken(driver, 9)])
    assert await states(driver, root, *kids) == [JobState.COMPLETED] * 4
    assert await connection.fetchval("select count(*) from stripe") == 0
    await connection.close()


async def test_a_parent_is_over_though_the_handle_died_after_its_last_ack(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the commit and the look behind it; then the upkeep of any worker finds it."""
    async with PostgresDriver.from_url(store_url) as dying, PostgresDriver.from_url(store_url) as other:
        root = group()
        await dying.enqueue([root, *children(root, 5), last := after(root)])
        jobs = await taken(dying, 5)

        async def dead(*_: Any) -> bool:
            return False

        monkeypatch.setattr(dying, "_judge_counted", dead)
        await dying.settle([Ack(job.lease) for job in jobs])
        assert await states(other, root) == [JobState.BLOCKED]
        assert (await other.promote()).count > 0
        assert (await other.promote()).count == 0
        assert await states(other, root, last) == [JobState.COMPLETED, JobState.READY]


async def test_promote_finds_all_that_a_dead_handle_left_a_part_at_a_time(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call looks at some parents, and ends no more than it may."""
    monkeypatch.setattr("taskharbor.drivers.postgres.families.CALL_LIMIT", 4)
    async with PostgresDriver.from_url(store_url) as dying, PostgresDriver.from_url(store_url) as other:
        roots = [group() for _ in range(9)]
        open_ones = [group() for _ in range(9)]
        kids = [kid for root in roots for kid in children(root, 1)]
        others = [kid for root in open_ones for kid in children(root, 2, queue="others")]
        await dying.enqueue([*roots, *open_ones, *kids, *others])
        jobs = await taken(dying, 9)
        more = (await dying.reserve(claim(queues=("others",), limit=18))).jobs
        half = {job.bonds.parent: job for job in more if job.bonds}

        async def dead(*_: Any) -> bool:
            return False

        monkeypatch.setattr(dying, "_judge_counted", dead)
        await dying.settle([Ack(job.lease) for job in (*jobs, *half.values())])
        assert set(await states(other, *roots)) == {JobState.BLOCKED}
        answers = [await other.promote(2) for _ in range(20)]
        assert max(answer.count for answer in answers) <= 2
        assert sorted(end.id for answer in answers for end in answer.ended) == sorted(
            root.id for root in roots
        )
        assert set(await states(other, *roots)) == {JobState.COMPLETED}
        assert set(await states(other, *open_ones)) == {JobState.BLOCKED}


async def test_an_answer_that_can_carry_no_end_leaves_it_for_the_next(driver: PostgresDriver) -> None:
    """A reclaim of nothing, and a call whose items are all refused."""
    [end] = (await driver.enqueue([group()]))[0].ended
    driver._unreported = (end,)
    [lost] = await driver.settle([Ack(Lease(end.id, "0" * 32, 1, datetime.now(UTC)))])
    assert isinstance(lost, LeaseLost)
    assert await driver.reclaim() == []
    assert (await driver.reserve(claim())).ended == (end,)
    assert (await driver.reserve(claim())).ended == ()


async def test_an_end_is_reported_once_though_other_calls_take_some_meanwhile(
    driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call ends a family while another has taken what was unreported, and has added to it."""
    root = group()
    await driver.enqueue([root, *children(root, 1)])
    jobs = await taken(driver, 1)
    one, two = [end for answer in await driver.enqueue([group(), group()]) for end in answer.ended]
    step = driver._family_step

    async def meanwhile(*arguments: Any, **options: Any) -> Any:
        answer = await step(*arguments, **options)
        assert driver._take_unreported() == (one,)
        driver._unreported += (two,)
        return answer

    monkeypatch.setattr(driver, "_family_step", meanwhile)
    driver._unreported = (one,)
    [settled] = await driver.settle([Ack(job.lease) for job in jobs])
    assert isinstance(settled, Settled)
    assert [end.id for end in settled.ended] == [two.id, root.id]


async def test_a_look_that_fails_is_made_again(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The acks are stored, so they are answered; the handle looks at the parent with a later claim."""
    async with PostgresDriver.from_url(store_url) as driver:
        root = group()
        await driver.enqueue([root, *children(root, 2)])
        jobs = await taken(driver, 2)
        with monkeypatch.context() as patch:

            async def unreachable(*_: Any, **__: Any) -> None:
                raise DriverUnavailable("gone", done=False)

            patch.setattr(driver, "_family_step", unreachable)
            answers = await driver.settle([Ack(job.lease) for job in jobs])
        assert all(isinstance(answer, Settled) for answer in answers)
        assert await states(driver, root) == [JobState.BLOCKED]
        driver._far_until = 0.0  # a second later
        await taken(driver, 1)
        assert await states(driver, root) == [JobState.COMPLETED]


async def test_more_ends_at_once_than_anybody_sees_are_found_by_the_second_look(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two calls end all children and commit together: each believes that many are open still."""
    async with PostgresDriver.from_url(store_url) as one, PostgresDriver.from_url(store_url) as two:
        root = group()
        await one.enqueue([root, *children(root, 4)])
        halves = [await taken(one, 2), await taken(two, 2)]
        looked = one._judge_counted

        async def far(counted: str, now: Any) -> bool:
            return await looked("2" + counted[1:], now)

        monkeypatch.setattr(one, "_judge_counted", far)
        monkeypatch.setattr(two, "_judge_counted", far)
        for driver, jobs in zip((one, two), halves, strict=True):
            await driver.settle([Ack(job.lease) for job in jobs])
        assert await states(one, root) == [JobState.BLOCKED]
        one._far_until = 0.0
        await taken(one, 1)
        assert await states(one, root) == [JobState.COMPLETED]


async def test_a_call_that_repeats_children_stores_nothing_twice(driver: PostgresDriver) -> None:
    """Children are trusted to be new; a repeat, whole or in part, is still a duplicate, over or not."""
    root = group()
    kids = children(root, 3)
    await driver.enqueue([root, *kids[:2]])
    again = await driver.enqueue(kids)
    assert [answer.result.value for answer in again] == ["duplicate", "duplicate", "created"]
    assert driver.enqueue_blocking([root, *kids])[0].result.value == "duplicate"
    assert [one.result.value for one in driver.enqueue_blocking(kids)] == ["duplicate"] * 3
    await driver.settle([Ack(job.lease) for job in await taken(driver, 9)])
    assert await states(driver, root) == [JobState.COMPLETED]
    assert [one.result.value for one in await driver.enqueue(kids)] == ["duplicate"] * 3


async def test_a_known_child_gets_a_follower_in_a_call_that_repeats_it(driver: PostgresDriver) -> None:
    """It is trusted to be new, and no longer a child and nothing else."""
    root = group()
    [known] = children(root, 1)
    await driver.enqueue([root, known])
    more = after(known)
    answers = await driver.enqueue([known, more])
    assert [answer.result.value for answer in answers] == ["duplicate", "blocked"]
    again = driver.enqueue_blocking([known, more])
    assert [answer.result.value for answer in again] == ["duplicate", "duplicate"]


async def test_a_failure_among_completed_children_is_counted_once(driver: PostgresDriver) -> None:
    root = group(tolerate=1)
    await driver.enqueue([root, *children(root, 20)])
    jobs = await taken(driver, 20)
    ends = [Fail(job.lease, "no") if no == 7 else Ack(job.lease) for no, job in enumerate(jobs)]
    await driver.settle(ends)
    [record] = await driver.get([root.id])

    assert record is not None
    assert record.state is JobState.COMPLETED
    assert record.family is not None
    assert (record.family.open, record.family.failed) == (0, 1)


@pytest.mark.timeout(300)
async def test_processes_end_the_last_children_of_many_groups_at_once(
    store_url: str, database_url: str
) -> None:
    """One of them is killed in the middle. Every callback runs to its end, and is released once."""
    before = await deadlocks(database_url)
    async with PostgresDriver.from_url(store_url) as driver:
        roots = [group() for _ in range(50)]
        callbacks = [after(root) for root in roots]
        kids = [children(root, 20) for root in roots]
        await driver.enqueue([*roots, *callbacks, *(kid for some in zip(*kids, strict=True) for kid in some)])
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, store_url, f"w{no}"], stdout=subprocess.PIPE, text=True
            )
            for no in range(4)
        ]
        try:
            for worker in workers:
                assert worker.stdout is not None
                assert await asyncio.to_thread(worker.stdout.readline) == "up\n"
            until = time.monotonic() + 120
            while (await driver.count())[QUEUE].completed < 300:
                assert time.monotonic() < until
            workers[0].send_signal(signal.SIGKILL)
            while set(await states(driver, *callbacks)) != {JobState.COMPLETED}:
                assert time.monotonic() < until
                await asyncio.sleep(0.1)
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()
        records = [job for job in await driver.get([job.id for job in callbacks]) if job is not None]
        ends = [job for job in await driver.get([job.id for job in roots]) if job is not None]
        assert (await driver.promote()).count == 0

    assert {job.starts - job.stalls for job in records} == {1}
    assert {(job.state, job.family.open if job.family else None) for job in ends} == {(JobState.COMPLETED, 0)}
    await asyncio.sleep(0.2)  # for the backends to end
    assert await deadlocks(database_url) == before


async def test_a_stop_meets_acks_of_the_same_children(store_url: str, database_url: str) -> None:
    """A step of the family and calls that settle its children by sets: the second of them gives way."""
    before = await deadlocks(database_url)
    drivers = [await PostgresDriver.from_url(store_url).open() for _ in range(4)]
    for _ in range(8):
        root = group()
        await drivers[0].enqueue([root, *children(root, 80)])
        some = [await taken(driver, 15) for driver in drivers[:3]]
        settled = (
            driver.settle([Ack(job.lease) for job in jobs])
            for driver, jobs in zip(drivers, some, strict=False)
        )
        await asyncio.gather(
            *settled, drivers[3].cancel([root.id]), drivers[3].extend_leases([some[0][0].lease], timedelta(1))
        )
        [record] = await drivers[0].get([root.id])
        assert record is not None
        assert record.family is not None
        assert record.family.open == 0
        assert record.state is JobState.CANCELLED
        assert await taken(drivers[0], 100) == []
    for driver in drivers:
        await driver.close()
    await asyncio.sleep(0.2)
    assert await deadlocks(database_url) == before
