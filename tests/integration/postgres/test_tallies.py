"""Tallies: counts that look at few rows, and are right whatever folds, writes and reads at the same time."""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from taskharbor.drivers.messages import Counts
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.schema import MIGRATIONS, filled
from taskharbor.model.settlement import Ack, Fail, Release, Retry
from taskharbor.testing.conformance.kit import OTHER_QUEUE, QUEUE, START, claim, new_job, new_jobs
from taskharbor.testing.servers import check_tallies, postgres_url

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
JOBS = 200


@contextmanager
def session(driver: PostgresDriver, isolation: str = "read committed") -> Iterator[Any]:
    """A connection that finds the tables of the store by their names."""
    with psycopg.connect(postgres_url(), autocommit=isolation == "read committed") as connection:
        if isolation != "read committed":
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute(f"set search_path = {driver.address.identifier}".encode())
        yield connection


def asked(connection: Any, statement: str) -> Any:
    return connection.execute(statement).fetchone()[0]


async def test_what_comes_to_nothing_leaves_no_row_when_it_is_folded(driver: PostgresDriver) -> None:
    await driver.enqueue(
        [*new_jobs(3), new_job(delay=MINUTE), new_job(queue=OTHER_QUEUE, priority=7)], now=START
    )
    jobs = (await driver.reserve(claim(limit=3), now=START)).jobs
    await driver.settle([Ack(job.lease) for job in jobs], now=START)
    before = await driver.count(now=START)

    with session(driver) as connection:
        folded = asked(connection, "select fold_tallies()")
        left = asked(connection, "select count(*) from tally_change")
        rows = connection.execute("select queue, state, rank, count from tally order by 1, 2, 3").fetchall()

    assert (folded > 0, left) == (True, 0)
    assert rows == [(QUEUE, 0, 0, 1), (QUEUE, 4, 0, 3), (OTHER_QUEUE, 0, -7, 1)]
    assert before == {QUEUE: Counts(completed=3, scheduled=1), OTHER_QUEUE: Counts(ready=1)}
    assert await driver.count(now=START) == before


@pytest.mark.parametrize("folds", [True, False])
async def test_jobs_become_ready_at_their_instant_and_not_with_their_slice(
    driver: PostgresDriver, folds: bool
) -> None:
    chance = random.Random(5)
    delays = [
        timedelta(seconds=chance.choice([1, 30, 240, 299.999999, 300, 300.000001, 617])) for _ in range(60)
    ]
    await driver.enqueue([new_job(delay=delay, priority=chance.randrange(3)) for delay in delays], now=START)
    await driver.enqueue(new_jobs(2), now=START)
    if folds:
        with session(driver) as connection:
            connection.execute("select fold_tallies()")

    for seconds in (0, 1, 29, 30, 239, 240, 299, 300, 301, 616, 617, 900):
        for beside in (timedelta(0), timedelta(microseconds=-1), timedelta(microseconds=1)):
            now = START + timedelta(seconds=seconds) + beside
            ready = 2 + sum(START + delay <= now for delay in delays)
            assert await driver.count([QUEUE], now=now) == {QUEUE: Counts(ready=ready, scheduled=62 - ready)}


async def test_the_oldest_ready_job_is_found_in_every_line(driver: PostgresDriver) -> None:
    await driver.enqueue([new_job(priority=9), new_job(requires="gpu", delay=SECOND)], now=START + MINUTE)
    await driver.enqueue([new_job(priority=-9, delay=30 * SECOND), new_job(delay=9 * MINUTE)], now=START)

    oldest = [(await driver.queues(now=START + after))[0].oldest_ready_at for after in (MINUTE, 2 * MINUTE)]

    assert oldest == [START + 30 * SECOND] * 2


async def test_a_count_looks_at_few_rows_however_many_wait_and_have_ended(driver: PostgresDriver) -> None:
    for _ in range(3):
        await driver.enqueue(new_jobs(1000))
    await driver.enqueue(new_jobs(1000, delay=timedelta(days=1)))
    jobs = (await driver.reserve(claim(limit=1000))).jobs
    for job in jobs[:200]:
        await driver.settle([Ack(job.lease)])
    await driver.settle([Release(job.lease) for job in jobs[200:]])
    with session(driver) as connection:
        connection.execute("select fold_tallies()")

    rows = await driver._connections.rows(
        f"explain (analyze, format json) {driver._sql['count']}", None, None
    )

    assert (await driver.count())[QUEUE] == Counts(ready=2800, scheduled=1000, completed=200)
    assert _rows_of(json.loads(rows[0][0])[0]["Plan"]) <= 30


def _rows_of(node: Any) -> int:
    """How many rows of tables a plan has read."""
    own = node["Actual Rows"] * node["Actual Loops"] if "Relation Name" in node else 0
    return own + sum(_rows_of(part) for part in node.get("Plans", ()))


# ------------------------------------------------------------------ at the same time


async def test_no_look_sees_a_job_twice_or_not_at_all_while_it_moves(driver: PostgresDriver) -> None:
    """Jobs move and are folded; each look is of one instant, and the number of jobs stays the same."""
    await driver.enqueue(new_jobs(JOBS))
    over = asyncio.Event()
    looks = 0

    async def move(seed: int) -> None:
        chance = random.Random(seed)
        while not over.is_set():
            jobs = (await driver.reserve(claim(limit=20, worker_id=f"w{seed}"))).jobs
            ends = (Ack, Fail, Retry, Release)
            await driver.settle([chance.choice(ends)(job.lease) for job in jobs])
            if not jobs:
                counts = (await driver.count())[QUEUE]
                if not counts.ready + counts.running:
                    over.set()

    async def fold() -> None:
        connection = await asyncpg.connect(postgres_url())
        try:
            while not over.is_set():
                await connection.execute(f"select {driver.address.identifier}.fold_tallies()")
                await asyncio.sleep(0.001)
        finally:
            await connection.close()

    async def look() -> None:
        nonlocal looks
        while not over.is_set():
            counts = (await driver.count())[QUEUE]
            assert counts.total == JOBS, counts
            looks += 1

    await asyncio.wait_for(asyncio.gather(*(move(seed) for seed in range(4)), fold(), fold(), look()), 60)

    assert looks > 5


async def test_a_session_that_folds_keeps_nobody_waiting(driver: PostgresDriver) -> None:
    await driver.enqueue(new_jobs(3), now=START)

    with session(driver) as first, session(driver) as second:
        first.execute("begin")
        assert asked(first, "select fold_tallies()") == 1
        assert asked(second, "select fold_tallies()") == 0
        await driver.enqueue(new_jobs(2), now=START)
        jobs = (await driver.reserve(claim(limit=4), now=START)).jobs
        during = await driver.count(now=START)
        first.execute("commit")

    assert len(jobs) == 4
    assert during == await driver.count(now=START) == {QUEUE: Counts(ready=1, running=4)}


async def test_a_transaction_that_looks_at_an_old_snapshot_folds_nothing(driver: PostgresDriver) -> None:
    with session(driver, "repeatable read") as old, session(driver) as other:
        assert asked(old, "select count(*) from tally_change") == 0
        await driver.enqueue(new_jobs(3), now=START)
        assert asked(other, "select fold_tallies()") == 1
        assert asked(old, "select fold_tallies()") == 0


# ------------------------------------------------------------------ counting again


async def test_a_recount_corrects_what_is_wrong_and_prune_does_it_when_it_is_due(
    driver: PostgresDriver,
) -> None:
    await driver.enqueue([*new_jobs(3), new_job(delay=MINUTE)], now=START)
    with session(driver) as connection:
        connection.execute("delete from waiting where is_timed")
        connection.execute("delete from tally_recount")
        await driver.prune(now=START)
        assert await driver.count(now=START) == {QUEUE: Counts(ready=3, scheduled=1)}

        connection.execute("insert into tally_recount values (clock_timestamp())")
        await driver.prune(now=START)

        assert await driver.count(now=START) == {QUEUE: Counts(ready=3)}
        assert asked(connection, "select due_at > clock_timestamp() + interval '23 hours' from tally_recount")
        assert asked(connection, "select recount_tallies()") == 0


async def test_a_store_in_use_is_counted_by_the_migration(driver: PostgresDriver) -> None:
    await driver.enqueue([*new_jobs(6), new_job(delay=MINUTE), new_job(queue=OTHER_QUEUE)], now=START)
    jobs = (await driver.reserve(claim(limit=4), now=START)).jobs
    await driver.settle(
        [Ack(jobs[0].lease), Fail(jobs[1].lease), Retry(jobs[2].lease, delay=MINUTE)], now=START
    )
    before = await driver.count(now=START)
    [text] = [migration.text for migration in MIGRATIONS if migration.name == "0005_tallies.pre"]

    with session(driver) as connection:
        connection.execute("drop table tally, tally_change, tally_recount; drop index waiting_timed")
        connection.execute(filled(text, driver.address))
        due = asked(connection, "select due_at - clock_timestamp() from tally_recount")

    assert await driver.count(now=START) == before
    assert due < timedelta(minutes=3), "calls that began before it noted no difference"


async def test_a_step_that_notes_no_difference_fails_its_test(driver: PostgresDriver) -> None:
    """The guard of all tests on this store."""
    await driver.enqueue(new_jobs(3), now=START)
    with session(driver) as connection:
        connection.execute("insert into tally_change (queue, lane, change) values ('other', 'any', 1)")

    with pytest.raises(AssertionError, match="1 tallies"):
        check_tallies()
