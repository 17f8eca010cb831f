"""Wake-ups: how many notifications are really sent, heard by a listener of our own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest

from taskharbor.drivers.messages import WakeupKind
from taskharbor.drivers.postgres import PostgresDriver, wakeups
from taskharbor.drivers.postgres.statements import enqueue_arguments, numbered
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import QUEUE, claim, new_job, new_jobs

WORKER = "worker-a"


class Ear:
    """Everything that is sent on the channel of a store."""

    def __init__(self, connection: Any, channel: str) -> None:
        self._connection = connection
        self._channel = channel
        self.heard: list[str] = []

    async def so_far(self) -> list[str]:
        """What was sent up to now: sends a word of its own, which comes after all others."""
        await self._connection.execute("select pg_notify($1, 'end')", self._channel)
        async with asyncio.timeout(10):
            while "end" not in self.heard:
                await asyncio.sleep(0.005)
        words, self.heard[:] = self.heard[: self.heard.index("end")], []
        return words


@pytest.fixture
async def ear(driver: PostgresDriver, database_url: str) -> AsyncIterator[Ear]:
    connection = await asyncpg.connect(database_url)
    ear = Ear(connection, driver.address.channel)
    await connection.add_listener(
        driver.address.channel, lambda *received: ear.heard.append(str(received[-1]))
    )
    yield ear
    await connection.close()


async def test_nothing_is_sent_while_nobody_listens(driver: PostgresDriver, ear: Ear) -> None:
    for _ in range(3):
        await driver.enqueue(new_jobs(10))

    assert await ear.so_far() == []


async def test_many_jobs_make_one_notification(driver: PostgresDriver, store_url: str, ear: Ear) -> None:
    hints = driver.wakeups([QUEUE], WORKER)
    await asyncio.wait_for(anext(hints), 30)  # it listens now, and has looked once
    assert (await driver.reserve(claim())).jobs == []

    async with PostgresDriver.from_url(store_url) as producer:
        for _ in range(5):
            await producer.enqueue(new_jobs(20))

    assert await ear.so_far() == [f"work {QUEUE}"]
    hint = await asyncio.wait_for(anext(hints), 30)
    assert (hint.kind, hint.queue) == (WakeupKind.WORK, QUEUE)
    await hints.aclose()


async def test_nothing_is_sent_while_every_worker_is_busy(driver: PostgresDriver, ear: Ear) -> None:
    await driver.enqueue(new_jobs(10))
    hints = driver.wakeups([QUEUE], WORKER)
    await asyncio.wait_for(anext(hints), 30)
    taken = (await driver.reserve(claim(limit=2))).jobs
    await driver.enqueue(new_jobs(5))  # takes the mark away that listening made
    await ear.so_far()

    for _ in range(3):
        taken = (await driver.exchange([Ack(job.lease) for job in taken], claim(limit=2))).claimed
        await driver.enqueue(new_jobs(1))

    assert len(taken) == 2
    assert await ear.so_far() == []
    await hints.aclose()


async def test_who_claims_after_a_hint_waits_behind_no_other_write(
    driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "_CLAIM_SECONDS", 0.0)
    hints = driver.wakeups([QUEUE], WORKER)
    await asyncio.wait_for(anext(hints), 30)
    await driver.reserve(claim())
    sent: list[str] = []
    rows = driver._connections.rows

    async def noted(statement: str, *arguments: Any, **options: Any) -> Any:
        sent.append(statement)
        return await rows(statement, *arguments, **options)

    monkeypatch.setattr(driver._connections, "rows", noted)
    for _ in range(3):
        await driver.enqueue([new_job()])
        async with asyncio.timeout(30):  # no task of its own: the claim follows in the same turn of the loop
            await anext(hints)
        assert len((await driver.reserve(claim(limit=5))).jobs) == 1

    assert driver._sql["mark_idle"] not in sent
    await hints.aclose()


async def test_who_does_not_claim_after_a_hint_still_gets_the_next_hint(
    driver: PostgresDriver, database_url: str
) -> None:
    hints = driver.wakeups([QUEUE], WORKER)
    await asyncio.wait_for(anext(hints), 30)
    for _ in range(3):
        await until_idle(driver, database_url)
        await driver.enqueue([new_job()])
        assert (await asyncio.wait_for(anext(hints), 30)).queue == QUEUE
    await hints.aclose()


@pytest.mark.parametrize("claims", [1, 3])
async def test_a_job_that_is_committed_behind_the_back_of_claims_is_hinted(
    driver: PostgresDriver, database_url: str, monkeypatch: pytest.MonkeyPatch, claims: int
) -> None:
    """Its enqueue found nobody hungry, and neither the claim that then marked the queue nor the next ones,
    which settled, saw it yet.
    """
    monkeypatch.setattr(wakeups, "_LOOK_AGAIN_SECONDS", 3600.0)  # the clock is put forward below
    hints = driver.wakeups([QUEUE], WORKER)
    await asyncio.wait_for(anext(hints), 30)
    await driver.reserve(claim())
    await driver.enqueue([new_job()])
    await asyncio.wait_for(anext(hints), 30)

    arguments = enqueue_arguments([new_job()], None, always_wake=False, is_new=True)
    with psycopg.connect(database_url) as connection:
        connection.execute(numbered(driver._sql["enqueue"], lambda _: "%s").encode(), arguments)
        taken = (await driver.reserve(claim(limit=5))).jobs
        assert len(taken) == 1
        for _ in range(claims - 1):
            taken = (await driver.exchange([Ack(job.lease) for job in taken], claim(limit=5))).claimed
            assert taken == []

    planned = driver._listener._look
    assert planned is not None
    assert not planned.cancelled()
    driver._listener._look_again()
    assert (await asyncio.wait_for(anext(hints), 10)).queue == QUEUE
    assert len((await driver.reserve(claim(limit=5))).jobs) == 1
    assert driver._listener._look is None  # once for every hint: who found nothing then waits for one
    await hints.aclose()


async def until_idle(driver: PostgresDriver, database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        async with asyncio.timeout(10):
            while not await connection.fetchval(
                f"select count(*) from {driver.address.identifier}.idle_queue where queue = $1", QUEUE
            ):
                await asyncio.sleep(0.01)
    finally:
        await connection.close()


async def test_a_transaction_of_the_caller_always_notifies_at_its_commit(
    driver: PostgresDriver, database_url: str, ear: Ear
) -> None:
    with psycopg.connect(database_url) as connection:
        driver.enqueue_blocking(new_jobs(3), tx=connection)
        assert await ear.so_far() == []

    assert await ear.so_far() == [f"work {QUEUE}"]


async def test_a_listener_that_is_lost_comes_back(
    driver: PostgresDriver, store_url: str, database_url: str
) -> None:
    hints = driver.wakeups([QUEUE], WORKER)
    await asyncio.wait_for(anext(hints), 30)

    with psycopg.connect(database_url, autocommit=True) as connection:
        listeners = connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name = %s",
            ["taskharbor"],
        ).fetchall()
    assert listeners
    await asyncio.wait_for(anext(hints), 30)  # everybody looks after a gap

    await driver.reserve(claim())
    async with PostgresDriver.from_url(store_url) as producer:
        await producer.enqueue([new_job()])
    hint = await asyncio.wait_for(anext(hints), 30)
    assert hint.queue == QUEUE
    await hints.aclose()
