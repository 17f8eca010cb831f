"""What a driver does when its server fails under it: nothing acknowledged is lost, nothing happens twice."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import asyncpg
import psycopg
import pytest

from taskharbor.drivers.messages import EnqueueResult
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.errors import DriverUnavailable, JobNotInflight
from taskharbor.model.job import JobRecord, NewJob
from taskharbor.model.settlement import Ack, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import QUEUE, claim, find_all, new_job, new_jobs
from taskharbor.testing.servers import PostgresServer
from taskharbor.testing.servers.postgres import migrate_blocking

RECOVERY_SECONDS = 5.0


@asynccontextmanager
async def opened(server: PostgresServer, options: str = "") -> AsyncIterator[PostgresDriver]:
    url = f"{server.url}?schema=survival"
    migrate_blocking(url)
    async with PostgresDriver.from_url(url + options) as driver:
        yield driver


async def until_accepted(driver: PostgresDriver, job: NewJob) -> EnqueueResult:
    """Enqueue again and again, as a client does, until the store answers; within the promised time."""
    async with asyncio.timeout(RECOVERY_SECONDS):
        while True:
            try:
                [answer] = await driver.enqueue([job])
                return answer.result
            except DriverUnavailable:
                await asyncio.sleep(0.02)


async def drained(driver: PostgresDriver) -> list[JobRecord]:
    done: list[JobRecord] = []
    while taken := (await driver.reserve(claim(limit=100))).jobs:
        await driver.settle([Ack(job.lease) for job in taken])
        done += taken
    return done


async def test_terminated_back_ends_lose_nothing_and_the_pool_heals(
    own_server: PostgresServer,
) -> None:
    async with opened(own_server) as driver:
        await _terminate_under_load(driver, own_server.url)


async def _terminate_under_load(driver: PostgresDriver, database_url: str) -> None:
    stop = asyncio.Event()
    accepted: list[str] = []

    async def enqueue() -> None:
        while not stop.is_set():
            job = new_job()
            await until_accepted(driver, job)
            accepted.append(job.id)

    async def terminate() -> None:
        connection = await asyncpg.connect(database_url)
        for _ in range(10):
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name = 'taskharbor' and pid <> pg_backend_pid()"
            )
            await asyncio.sleep(0.05)
        await connection.close()
        stop.set()

    await asyncio.gather(enqueue(), enqueue(), terminate())

    stored = [job.id for job in await find_all(driver, now=None)]  # type: ignore[arg-type]
    assert set(accepted) <= set(stored)
    assert len(stored) == len(set(stored))
    assert len(await drained(driver)) == len(stored)


@pytest.mark.more("kills processes or servers and waits until others take over")
async def test_a_killed_server_keeps_all_it_acknowledged(own_server: PostgresServer) -> None:
    async with opened(own_server) as driver:
        for round_ in range(3):
            accepted: list[str] = []

            async def enqueue(accepted: list[str] = accepted) -> None:
                while True:
                    jobs = new_jobs(5)
                    await driver.enqueue(jobs)
                    accepted += [job.id for job in jobs]

            crowd = [asyncio.create_task(enqueue()) for _ in range(3)]
            while len(accepted) < 50:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(own_server.kill)
            ends = await asyncio.gather(*crowd, return_exceptions=True)
            assert all(isinstance(end, DriverUnavailable) for end in ends), ends

            await asyncio.to_thread(own_server.start)
            assert await until_accepted(driver, new_job()) is EnqueueResult.CREATED
            found = await driver.get(accepted)
            assert all(job is not None for job in found), f"lost in round {round_}"
            await drained(driver)


async def test_a_restarted_server_is_found_again_and_so_are_its_wake_ups(own_server: PostgresServer) -> None:
    async with opened(own_server) as driver:
        hints = driver.wakeups([QUEUE], "worker-a")
        await asyncio.wait_for(anext(hints), 5)

        await asyncio.to_thread(own_server.stop)
        await asyncio.to_thread(own_server.start)
        assert await until_accepted(driver, new_job()) is EnqueueResult.CREATED

        hint = await asyncio.wait_for(anext(hints), RECOVERY_SECONDS)
        assert hint.queue == QUEUE
        await hints.aclose()


async def test_an_answer_lost_after_the_commit_makes_no_second_job_and_no_second_count(
    driver: PostgresDriver, store_url: str
) -> None:
    """The server has committed, and the connection breaks before the answer arrives."""
    lossy = PostgresDriver.from_url(store_url)
    async with lossy:
        job = new_job()
        with pytest.raises(DriverUnavailable) as caught, losing_answers(lossy):
            await lossy.enqueue([job])
        assert caught.value.done is None
        [again] = await lossy.enqueue([job])
        assert (again.id, again.result) == (job.id, EnqueueResult.DUPLICATE)

        [taken] = (await lossy.reserve(claim())).jobs
        with pytest.raises(DriverUnavailable), losing_answers(lossy):
            await lossy.settle([Retry(taken.lease, reason="no luck")])
        [late] = await lossy.settle([Retry(taken.lease, reason="no luck")])

    assert isinstance(late, JobNotInflight)
    [stored] = await driver.get([job.id])
    assert stored is not None
    assert (stored.attempts, stored.settled_token) == (1, taken.token)


@contextmanager
def losing_answers(driver: PostgresDriver, *, after: int = 0) -> Iterator[None]:
    """A step is carried out and committed, and its answer gets lost; those before it are answered."""
    connections = driver._connections
    once = connections._once
    answered = iter(range(after))

    async def lose(step: Any, urgent: bool) -> Any:
        answer = await once(step, urgent)
        if next(answered, None) is None:
            raise ConnectionResetError("cut")
        return answer

    connections._once = lose  # type: ignore[method-assign]
    try:
        yield
    finally:
        connections._once = once  # type: ignore[method-assign]


# ------------------------------------------------------------------ errors that the driver keeps to itself


@pytest.fixture
def failing(store_url: str, database_url: str) -> Any:
    """Make the next statements on a table fail with this code; the count survives the rollback."""
    schema = store_url.rpartition("schema=")[2]
    connection = psycopg.connect(database_url, autocommit=True)

    def fail(table: str, code: str, times: int) -> None:
        connection.execute(
            f"""
            drop sequence if exists {schema}.failures;
            create sequence {schema}.failures;
            create or replace function {schema}.fail() returns trigger language plpgsql as $$
            begin
                if nextval('{schema}.failures') <= {times} then
                    raise exception 'injected' using errcode = '{code}';
                end if;
                return null;
            end $$;
            create or replace trigger fail before insert or update or delete on {schema}.{table}
            for each statement execute function {schema}.fail()
            """.encode()
        )

    yield fail
    for table in ("job", "waiting", "job_state"):
        connection.execute(f"drop trigger if exists fail on {schema}.{table}".encode())
    connection.execute(
        f"drop function if exists {schema}.fail; drop sequence if exists {schema}.failures".encode()
    )
    connection.close()


@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_serialisation_failures_and_deadlocks_are_invisible(
    driver: PostgresDriver, failing: Any, code: str
) -> None:
    failing("job", code, 5)
    job = new_job(idempotency_key=b"once")
    assert [answer.result for answer in await driver.enqueue([job])] == [EnqueueResult.CREATED]

    failing("job", code, 5)
    blocking = new_job()
    answers = await asyncio.to_thread(driver.enqueue_blocking, [blocking])
    assert [answer.result for answer in answers] == [EnqueueResult.CREATED]

    failing("waiting", code, 5)
    taken = (await driver.reserve(claim(limit=2))).jobs
    assert [job.starts for job in taken] == [1, 1]
    failing("job_state", code, 5)
    await driver.settle([Ack(job.lease) for job in taken])

    found = await driver.get([job.id, blocking.id])
    assert [job and (job.state, job.version) for job in found] == [(JobState.COMPLETED, 3)] * 2


@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_failures_without_end_are_logged_and_change_nothing(
    driver: PostgresDriver, failing: Any, code: str
) -> None:
    failing("job", code, 1000)

    with pytest.raises(DriverUnavailable) as caught:
        await driver.enqueue([new_job()])

    assert caught.value.done is False
    assert await driver.count() == {}


async def test_a_full_disk_is_reported_as_such(driver: PostgresDriver, failing: Any) -> None:
    from taskharbor.errors import StoreFull

    failing("job", "53100", 1)

    with pytest.raises(StoreFull):
        await driver.enqueue([new_job()])
    assert await driver.count() == {}
    assert [answer.result for answer in await driver.enqueue([new_job()])] == [EnqueueResult.CREATED]


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
async def test_a_timeout_of_the_server_is_no_lost_lease(
    driver: PostgresDriver, store_url: str, database_url: str, setting: str
) -> None:
    await driver.enqueue([new_job()])
    [job] = (await driver.reserve(claim())).jobs
    schema = store_url.rpartition("schema=")[2]
    async with PostgresDriver.from_url(f"{store_url}&options=-c%20{setting}%3D100") as hurried:
        with psycopg.connect(database_url) as holder:
            holder.execute(f"select * from {schema}.job_state for update".encode())

            with pytest.raises(DriverUnavailable) as caught:
                await hurried.settle([Ack(job.lease)])

    assert caught.value.done is False
    [settled] = await driver.settle([Ack(job.lease)])
    assert settled.version == 3  # type: ignore[union-attr]


async def test_no_connection_left_is_unavailable_until_there_is_one() -> None:
    few = {"max_connections": "6", "superuser_reserved_connections": "0"}
    with PostgresServer(settings=few) as server:
        async with opened(server, "&pool_size=2") as driver:
            await driver.enqueue([new_job()])
            others = []
            with suppress(asyncpg.TooManyConnectionsError):
                while True:
                    others.append(await asyncpg.connect(server.url))

            # One that comes back soon is waited for; this one does not.
            busy = asyncio.create_task(driver._connections.rows("select pg_sleep(2)"))
            with pytest.raises(DriverUnavailable) as caught:
                await asyncio.gather(*(driver.enqueue([new_job()]) for _ in range(2)))
            assert caught.value.done is False
            await busy
            for other in others:
                await other.close()

            assert await until_accepted(driver, new_job()) is EnqueueResult.CREATED


# ------------------------------------------------------------------ the launcher itself


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Any) -> None:
    import signal
    import subprocess
    import sys

    program = (
        "from taskharbor.testing.servers import PostgresServer\n"
        "import signal\n"
        "server = PostgresServer(); server.start(); print(server.pid, server.folder, flush=True)\n"
        "signal.pause()\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pid, folder = starter.stdout.readline().split()

    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()

    async def gone() -> None:
        async with asyncio.timeout(10):
            while os.path.exists(f"/proc/{pid}") and "Z" not in _state(pid):
                await asyncio.sleep(0.02)

    asyncio.run(gone())
    subprocess.run(["rm", "-rf", folder], check=True)


def _state(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"
