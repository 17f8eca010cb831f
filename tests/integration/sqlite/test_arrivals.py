"""Jobs that came alone and have no place in line yet: every verb and every look takes them as any others."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taskharbor.client.why import look_into
from taskharbor.drivers.messages import Enqueued, Query
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.drivers.sqlite.location import location_of
from taskharbor.errors import TaskHarborError
from taskharbor.model.bonds import Bonds
from taskharbor.model.job import NO_TIME, NewJob
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Release
from taskharbor.model.state import JobState
from taskharbor.testing.statemachine import hold_families_to_the_model, hold_to_the_model
from tests.integration.sqlite.stores import NOW, claim, content, driver_on, is_sound, new_job

SOON = NOW + timedelta(seconds=1)
LATER = NOW + timedelta(days=1)
JOBS = [new_job(), new_job(queue="mail", priority=3), new_job(type="test.other"), new_job()]

Verb = Callable[[SqliteDriver], Awaitable[Any]]


async def pages(driver: SqliteDriver, **asked: Any) -> list[list[str]]:
    """The ids of all pages of a listing."""
    query, found = Query(**asked), []
    while True:
        page = await driver.find(query, now=SOON)
        found.append([job.id for job in page.jobs])
        if page.next_cursor is None:
            return found
        query = msgspec.structs.replace(query, cursor=page.next_cursor)


async def in_transaction(driver: SqliteDriver, end: str) -> Any:
    with closing(sqlite3.connect(driver._location.path, isolation_level=None)) as own:
        own.execute("begin immediate")
        answer = await driver.enqueue_in([new_job(id=JOBS[0].id), NEW], tx=own, now=SOON)
        seen = driver.get_on(own, [job.id for job in (*JOBS, NEW)], now=SOON)
        own.execute(end)
    return answer, seen


async def acked_with_a_transaction(driver: SqliteDriver) -> Any:
    [job] = (await driver.reserve(claim(1), now=SOON)).jobs
    driver.enqueue_blocking([NEW], now=SOON)
    async with driver.transaction(job.lease, now=SOON):
        pass
    return await driver.get([job.id, NEW.id], now=SOON)


async def claimed_and_forgotten(driver: SqliteDriver) -> Any:
    settings = QueueSettings(queue="default", retention=Retention(completed=NO_TIME))
    await driver.configure_queue(settings, now=SOON)
    jobs = (await driver.reserve(claim(), now=SOON)).jobs
    return await driver.settle([Ack(job.lease) for job in jobs], now=SOON)


async def pruned(driver: SqliteDriver) -> Any:
    await driver.cancel([job.id for job in JOBS], now=SOON)
    driver.enqueue_blocking([NEW], now=SOON)
    return await driver.prune(now=LATER + timedelta(days=60)), await driver.count(now=LATER)


async def paused(driver: SqliteDriver) -> Any:
    await driver.configure_queue(QueueSettings(queue="default", paused=True), now=SOON)
    return await driver.reserve(claim(), now=SOON)


async def view_of(driver: SqliteDriver) -> Any:
    with closing(sqlite3.connect(driver._location.path)) as own:
        return own.execute("select id, seq, queue, type, state, priority, created_at from th_jobs").fetchall()


async def exchanged(driver: SqliteDriver) -> Any:
    [job] = (await driver.reserve(claim(1), now=SOON)).jobs
    driver.enqueue_blocking([NEW], now=SOON)
    return (await driver.exchange([Release(job.lease)], claim(9), now=SOON)).claimed


NEW = new_job()
CHILD = new_job(bonds=Bonds(parent=JOBS[0].id))
FOLLOWER = new_job(bonds=Bonds(after=(JOBS[0].id, JOBS[3].id)))
KEYED = [new_job(key=b"key"), new_job(idempotency_key=b"once")]
STATES = [None, (JobState.READY,), (JobState.SCHEDULED, JobState.READY), (JobState.RUNNING, JobState.FAILED)]

VERBS: dict[str, Verb] = {
    "get": lambda driver: driver.get([job.id for job in JOBS], now=SOON),
    "count": lambda driver: driver.count(now=SOON),
    "count one": lambda driver: driver.count(["mail", "none"], now=SOON),
    "queues": lambda driver: driver.queues(now=SOON),
    "why": lambda driver: look_into(driver, JOBS[3].id, now=SOON),
    "the view": view_of,
    "claim": lambda driver: driver.reserve(claim(), now=SOON),
    "claim one": lambda driver: driver.reserve(claim(1, "mail"), now=SOON),
    "claim a type": lambda driver: driver.reserve(
        msgspec.structs.replace(claim(), types=("test.other",)), now=SOON
    ),
    "pause": paused,
    "cancel": lambda driver: driver.cancel([JOBS[0].id, JOBS[1].id], now=SOON),
    "delete": lambda driver: driver.delete([JOBS[2].id], now=SOON),
    "requeue": lambda driver: driver.requeue([JOBS[0].id], now=SOON),
    "speculate": lambda driver: driver.speculate(JOBS[0].id, now=SOON),
    "promote": lambda driver: driver.promote(now=SOON),
    "prune": pruned,
    "forget": claimed_and_forgotten,
    "exchange": exchanged,
    "the same id": lambda driver: driver.enqueue([JOBS[0], NEW], now=SOON),
    "keys": lambda driver: driver.enqueue([*KEYED, *KEYED], now=SOON),
    "a child": lambda driver: driver.enqueue([CHILD], now=SOON),
    "a follower": lambda driver: driver.enqueue([FOLLOWER], now=SOON),
    "a transaction": lambda driver: in_transaction(driver, "commit"),
    "a transaction that fails": lambda driver: in_transaction(driver, "rollback"),
    "an ack with a transaction": acked_with_a_transaction,
    **{
        f"find {'newest ' if newest else ''}{states} {queue}": partial(
            pages, newest_first=newest, states=states, queue=queue, limit=2
        )
        for newest in (False, True)
        for states in STATES
        for queue in (None, "default", "mail", "none")
    },
}


async def outcome(path: Path, verb: Verb, *, alone: bool) -> tuple[str, dict[str, Any]]:
    """What a verb of another process answers right after the enqueues, and what is in the file in the end."""
    async with driver_on(path, seed=1) as driver, driver_on(path, seed=2) as another:
        await driver.enqueue([new_job(id=FIRST.id)], now=NOW)
        for job in JOBS:
            if alone:
                assert driver._writer is not None
                assert driver._writer.enqueue_one(job, NOW) is not None
            else:
                await driver.enqueue([job], now=NOW)
        try:
            answer = await verb(another)
        except TaskHarborError as error:
            answer = error
        await driver.promote(now=SOON)
    assert is_sound(path)
    stored = content(path)
    del stored["th_migration"], stored["th_addition"]  # when each was made
    return repr(answer), stored


FIRST = new_job()


@pytest.mark.parametrize("name", VERBS)
async def test_another_process_finds_them_as_jobs_of_the_ordinary_way(tmp_path: Path, name: str) -> None:
    alone = await outcome(tmp_path / "alone.db", VERBS[name], alone=True)
    ordinary = await outcome(tmp_path / "ordinary.db", VERBS[name], alone=False)

    assert alone == ordinary


@pytest.mark.parametrize("newest_first", [False, True])
async def test_they_are_listed_page_by_page_across_two_blocks(tmp_path: Path, newest_first: bool) -> None:
    path = tmp_path / "jobs.db"
    async with driver_on(path) as driver, driver_on(path) as another:
        before = [new_job(queue="mail") for _ in range(1018)]
        await driver.enqueue(before, now=NOW)
        jobs = [new_job() for _ in range(12)]  # numbers 1019 to 1030
        for job in jobs:
            assert driver._writer is not None
            assert driver._writer.enqueue_one(job, NOW) is not None
        mine = await pages(another, queue="default", limit=5, newest_first=newest_first)
        every = await pages(another, limit=1000, newest_first=newest_first, states=(JobState.READY,))

    ids = [job.id for job in jobs]
    assert [job_id for page in mine for job_id in page] == (ids[::-1] if newest_first else ids)
    ids = [job.id for job in (*before, *jobs)]
    assert [job_id for page in every for job_id in page] == (ids[::-1] if newest_first else ids)


ENQUEUE_UNTIL_KILLED = """
import asyncio, os, signal, sys
from taskharbor.drivers import connect
from taskharbor.model.entropy import Entropy
from taskharbor.model.clock import SystemClock
from taskharbor.model.job import NewJob

async def main():
    driver = await connect(sys.argv[1]).open()
    for _ in range(20):
        job = NewJob(id=Entropy().job_id(SystemClock().now()), type="test.job")
        driver.enqueue_blocking([job])
        print(job.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_what_a_killed_process_was_answered_is_claimed_by_another(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    command = [sys.executable, "-c", ENQUEUE_UNTIL_KILLED, f"sqlite:///{path}"]
    killed = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=60)

    async with driver_on(path) as driver:
        assert (await driver.count())["default"].ready == 20
        claimed = (await driver.reserve(claim(50))).jobs

    assert killed.returncode < 0
    assert [job.id for job in claimed] == killed.stdout.split()
    assert is_sound(path)


class OneByOne(SqliteDriver):
    """Every job that comes alone goes the way of a blocking caller."""

    async def do_enqueue(self, jobs: Sequence[NewJob], now: datetime | None) -> list[Enqueued]:
        return self.do_enqueue_blocking(jobs, now, None)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("hold", [hold_to_the_model, hold_families_to_the_model])
def test_a_store_of_them_answers_and_stores_what_the_model_does(tmp_path: Path, hold: Any) -> None:
    numbers = count()

    def make_driver() -> SqliteDriver:
        return OneByOne(location_of(f"sqlite:///{tmp_path}/{next(numbers)}.db?durability=normal"))

    steps = 1000 if hold is hold_to_the_model else 200
    met = hold(make_driver, steps=steps, seed_number=3, least=0, shrink=False)

    assert (met["steps"] if isinstance(met, dict) else met.steps) >= steps // 2
