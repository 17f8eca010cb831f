"""What idle workers cost a server: connections, and what one job sets off among them. Counts, no times."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from taskharbor.drivers.messages import WakeupKind
from taskharbor.drivers.postgres import PostgresDriver, connections, wakeups
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import QUEUE, claim, new_job
from taskharbor.testing.servers import PostgresServer
from taskharbor.testing.servers.postgres import migrate_blocking

SLOW = 60.0
MANY = 60


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"max_connections": "200"}) as server:
        migrate_blocking(server.url)
        yield server


@pytest.fixture
async def counter(server: PostgresServer) -> AsyncIterator[Any]:
    """Somebody who counts, and is not counted."""
    connection = await asyncpg.connect(server.url, server_settings={"application_name": "counter"})
    yield connection
    await connection.close()


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SLOW):
        while not await is_so():
            await asyncio.sleep(0.05)


class Hand:
    """A worker without a poll: it claims when it gets a hint, and does at once what it gets."""

    def __init__(self, driver: PostgresDriver, name: str) -> None:
        self.driver = driver
        self.name = name
        self.did: list[str] = []

    async def work(self) -> None:
        hints = self.driver.wakeups([QUEUE], self.name)
        async for hint in hints:
            if hint.kind is WakeupKind.WORK:
                await self.look()

    async def look(self) -> None:
        mine = claim(worker_id=self.name, limit=10, types=("kit.job",))
        jobs = (await self.driver.reserve(mine)).jobs
        while jobs:
            self.did += [job.id for job in jobs]
            jobs = (await self.driver.exchange([Ack(job.lease) for job in jobs], mine)).claimed

    @property
    def hears(self) -> bool:
        return self.driver._listener._listens

    def attend(self) -> None:
        self.driver._listener._news.set()


@asynccontextmanager
async def hands(server: PostgresServer, count: int) -> AsyncIterator[list[Hand]]:
    """So many idle workers, of which as many listen as ever will."""
    all_of_them = [Hand(PostgresDriver.from_url(server.url), f"w{number}") for number in range(count)]
    for hand in all_of_them:
        await hand.driver.open()
    working = [asyncio.create_task(hand.work()) for hand in all_of_them]

    async def is_settled() -> bool:
        return sum(hand.hears for hand in all_of_them) == min(count, 2)

    await until(is_settled)
    yield all_of_them
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    for hand in all_of_them:
        await hand.driver.close()


async def transactions(counter: Any, crowd: list[Hand]) -> int:
    """How many there were so far, those included that sessions have not reported yet."""
    for hand in crowd:
        await hand.driver._connections.rows("select pg_stat_force_next_flush()")
    await counter.execute("select pg_stat_clear_snapshot()")
    return int(
        await counter.fetchval("select xact_commit from pg_stat_database where datname = current_database()")
    )


async def set_off_by_one_job(
    server: PostgresServer, counter: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> int:
    """How many transactions one job costs with so many idle workers, from its enqueue until all is quiet."""
    monkeypatch.setattr(wakeups, "_WATCH_SECONDS", 0.2)
    async with hands(server, count) as crowd, PostgresDriver.from_url(server.url) as producer:
        monkeypatch.setattr(wakeups, "_WATCH_SECONDS", 3600.0)
        for hand in crowd:
            hand.attend()  # the next look at the watch is an hour away

        async def once(enqueues: bool) -> int:
            before = await transactions(counter, crowd)
            if enqueues:
                job = new_job()
                await producer.enqueue([job])

                async def is_done() -> bool:
                    return any(job.id in hand.did for hand in crowd)

                await until(is_done)
            claims = -1
            while claims != (claims := sum(hand.driver._signals.claims for hand in crowd)):
                await asyncio.sleep(1.0)  # nobody has looked for a second: all is quiet
            await producer._connections.rows("select pg_stat_force_next_flush()")
            return await transactions(counter, crowd) - before

        await once(True)  # whatever is done only the first time
        return await once(True) - await once(False)


@pytest.mark.more("starts many processes")
async def test_one_job_wakes_few_of_many_idle_workers(
    server: PostgresServer, counter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions that listen are woken by the server, each in a transaction of its own: those count, too."""
    monkeypatch.setattr(wakeups, "_PROBE_SECONDS", 3600.0)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 3600.0)  # a connection that is opened again counts, too
    alone = await set_off_by_one_job(server, counter, 1, monkeypatch)
    among_many = await set_off_by_one_job(server, counter, MANY, monkeypatch)

    assert alone >= 3
    assert among_many <= 3 * alone, (alone, among_many)


async def test_the_watch_of_workers_that_die_goes_to_others(
    server: PostgresServer, counter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any poll: a worker that got the hint and died leaves its place, and its successor looks."""
    monkeypatch.setattr(wakeups, "_WATCH_SECONDS", 0.2)
    async with hands(server, 6) as crowd:
        first = {hand.name for hand in crowd if hand.hears}
        for hand in crowd:
            if hand.name in first:
                await hand.driver.close()

        async def is_taken_over() -> bool:
            return len({hand.name for hand in crowd if hand.hears} - first) == 2

        await until(is_taken_over)
        async with PostgresDriver.from_url(server.url) as producer:
            job = new_job()
            await producer.enqueue([job])

        async def is_done() -> bool:
            return any(job.id in hand.did for hand in crowd if hand.name not in first)

        await until(is_done)


async def test_a_worker_with_jobs_in_hand_hears_of_their_cancel_without_the_watch(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "_WATCH_SECONDS", 0.2)
    async with hands(server, 3) as crowd:
        [idle] = [hand for hand in crowd if not hand.hears]
        async with PostgresDriver.from_url(server.url) as producer:
            hints = idle.driver.wakeups([QUEUE], "second-reader")  # several readers: each gets every hint
            await hints.aclose()
            job = new_job(queue="apart")
            await producer.enqueue([job])
            assert (await idle.driver.reserve(claim(queues=("apart",), worker_id=idle.name))).jobs

            async def hears() -> bool:
                return idle.hears

            await until(hears)
            hinted: list[str] = []
            reader = idle.driver._listener._subscriptions[0]
            monkeypatch.setattr(reader, "put", lambda hint: hinted.append(hint.job_id))
            await producer.cancel([job.id])

            async def is_woken() -> bool:
                return job.id in hinted

            await until(is_woken)


# ------------------------------------------------------------------ real processes

APP = """
from taskharbor import Harbor

harbor = Harbor({url!r})


@harbor.task
def greet(name: str) -> str:
    return name
"""


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
async def test_an_idle_worker_process_has_two_connections(
    server: PostgresServer, counter: Any, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP.format(url=server.url))
    command = [sys.executable, "-m", "taskharbor", "worker", "app:harbor"]
    workers = [
        subprocess.Popen(
            command, cwd=tmp_path, env={**os.environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(3)
    ]
    try:
        async with PostgresDriver.from_url(server.url) as driver:
            job = new_job(type="greet", queue="default", payload=b'{"name": "you"}')
            await driver.enqueue([job])

            async def are_idle() -> bool:
                [stored] = await driver.get([job.id])
                assert stored is not None
                assert stored.state is not JobState.FAILED, stored.last_error
                return stored.state is JobState.COMPLETED and len(await driver.workers()) == len(workers)

            await until(are_idle)

        async def has_two_each() -> bool:
            """For a while: what a report or a beat opens besides would show."""
            for _ in range(20):
                count = await counter.fetchval(
                    "select count(*) from pg_stat_activity where application_name = 'taskharbor'"
                )
                if count > 2 * len(workers):
                    return False
                await asyncio.sleep(0.1)
            return True

        await until(has_two_each)
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(30)
            worker.kill()
            worker.wait()
