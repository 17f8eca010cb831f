"""Who waits at the gate of a limit keeps nobody waiting: neither heartbeats, nor sweeps, nor cancels."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

from taskharbor.drivers.messages import CancelResult, Extended, Settled
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.schema import FUNCTIONS, filled
from taskharbor.errors import LeaseLost
from taskharbor.model.job import Progress
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings
from taskharbor.model.settlement import Ack, Fail, Settlement
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import HOUR, QUEUE, claim, new_job, new_jobs
from tests.integration.postgres.waiting import someone_waits_for

SLOW = 20.0
GATE_AND_SWEEP = (
    r"(    v_is_gated := .*?;\n    if v_is_gated and .*?end if;\n)(.*?)"
    r"(    if exists \(select from lease h .*?\n    end if;\n)"
)


@asynccontextmanager
async def lock_gate(
    gate: str, driver: PostgresDriver, database_url: str
) -> AsyncIterator[asyncpg.Connection]:
    """Another session holds the gate of this level, for as long as the block lasts."""
    connection = await asyncpg.connect(database_url)
    try:
        schema = driver.address.identifier
        await connection.execute(f"set search_path = {schema}")
        await connection.execute("begin")
        await connection.fetch(f"select pg_advisory_xact_lock({schema}.lock_id('claim', $1::text))", gate)
        yield connection
    finally:
        await connection.close()


async def someone_waits(gate: asyncpg.Connection) -> None:
    """Until a claim waits for that gate."""
    async with asyncio.timeout(SLOW):
        while not await someone_waits_for(gate, gate):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("level", [QUEUE, EVERY_QUEUE])
async def test_who_waits_at_a_gate_keeps_nobody_waiting(
    driver: PostgresDriver, store_url: str, database_url: str, level: str
) -> None:
    await driver.enqueue(new_jobs(20))
    wanted = claim(limit=8, lease_for=HOUR)
    jobs = (await driver.reserve(wanted)).jobs
    await driver.configure_queue(QueueSettings(queue=level, max_running=10))

    async with PostgresDriver.from_url(store_url) as worker:
        async with lock_gate(level, driver, database_url) as gate:
            # One ack is plain, one comes with a failure that concerns more than one table.
            ends: list[Settlement] = [Ack(jobs[0].lease), Fail(jobs[1].lease, "no")]
            waiting = asyncio.create_task(worker.exchange(ends, wanted))
            second = await driver.another().open()
            waiting_too = asyncio.create_task(second.exchange([Ack(jobs[2].lease)], wanted))
            await someone_waits(gate)

            async with asyncio.timeout(SLOW):
                rest = [job.lease for job in jobs[3:]]
                beats = await driver.extend_leases(rest, HOUR, progress={jobs[3].id: Progress(0.5)})
                [cancelled] = await driver.cancel([jobs[4].id])
                [settled] = await driver.settle([Fail(jobs[5].lease, "broken")])
                swept = await driver.reclaim(10)
                while [job.state for job in await driver.get([job.id for job in jobs[:3]]) if job] != [
                    JobState.COMPLETED,
                    JobState.FAILED,
                    JobState.COMPLETED,
                ]:
                    await asyncio.sleep(0.01)  # committed, although their claims wait

            assert all(isinstance(beat, Extended) for beat in beats)
            assert cancelled.result is CancelResult.REQUESTED
            assert isinstance(settled, Settled)
            assert swept == []
            assert not waiting.done()
            assert not waiting_too.done()
        async with asyncio.timeout(SLOW):
            answers = [await waiting, await waiting_too]
        await second.close()

    assert sum(len(answer.claimed) for answer in answers) == 10 - 4  # what runs, and what may
    assert all(isinstance(one, Settled) for answer in answers for one in answer.settled)


async def held_while_a_claim_waits(store_url: str, database_url: str, level: str) -> set[str]:
    """A claim meets leases that have run out and a gate that another session has: what it holds meanwhile."""
    async with PostgresDriver.from_url(store_url) as driver, PostgresDriver.from_url(store_url) as worker:
        await driver.configure_queue(QueueSettings(queue=level, max_running=10))
        await driver.enqueue(new_jobs(4))
        await driver.reserve(claim(limit=4, lease_for=timedelta(milliseconds=1)))
        await asyncio.sleep(0.01)
        async with lock_gate(level, driver, database_url) as gate:
            waiting = asyncio.create_task(worker.reserve(claim(limit=4, lease_for=HOUR)))
            await someone_waits(gate)
            held = await tables_with_locked_rows(driver, database_url)
            swept = await driver.reclaim(10)
        async with asyncio.timeout(SLOW):
            jobs = (await waiting).jobs
    assert len(jobs) == 4
    assert held or len(swept) == 4  # a scheduler does it meanwhile
    return held


async def tables_with_locked_rows(driver: PostgresDriver, database_url: str) -> set[str]:
    watcher = await asyncpg.connect(database_url)
    try:
        held = set()
        for table in ("job_state", "slot", "lease"):
            rows = f"select from {driver.address.identifier}.{table}"
            if len(await watcher.fetch(f"{rows} for update skip locked")) < len(await watcher.fetch(rows)):
                held.add(table)
        return held
    finally:
        await watcher.close()


@pytest.mark.parametrize("level", [QUEUE, EVERY_QUEUE])
async def test_a_claim_sweeps_behind_the_gate(store_url: str, database_url: str, level: str) -> None:
    """Rows that it had locked before would close a circle with the claim that has the gate."""
    assert await held_while_a_claim_waits(store_url, database_url, level) == set()


async def test_a_sweep_before_the_gate_would_be_found(store_url: str, database_url: str) -> None:
    """A test of the test: the same claim with the gate behind its sweep."""
    async with PostgresDriver.from_url(store_url) as driver:
        right = FUNCTIONS.texts["exchange"]
        before, gate, between, sweep, behind = re.split(GATE_AND_SWEEP, right, flags=re.DOTALL)
        connection = await asyncpg.connect(database_url)
        try:
            await connection.execute(filled(before + sweep + between + gate + behind, driver.address))
        finally:
            await connection.close()

    assert await held_while_a_claim_waits(store_url, database_url, QUEUE) == {"job_state", "slot", "lease"}


@pytest.mark.parametrize("is_blocked", [False, True])
async def test_a_sweep_waits_for_no_idempotency_key(
    driver: PostgresDriver, database_url: str, is_blocked: bool
) -> None:
    """A long transaction has it: a claim that waited in its sweep would keep everybody at the gate."""
    await driver.configure_queue(QueueSettings(queue=QUEUE, max_running=10))
    running = new_job(key=b"key", idempotency_key=None if is_blocked else b"once", max_stalls=1 - is_blocked)
    await driver.enqueue([running])
    await driver.reserve(claim(limit=1, lease_for=timedelta(milliseconds=1)))
    await driver.enqueue([new_job(key=b"key", idempotency_key=b"once" if is_blocked else None)])
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("begin")
        await connection.execute(f"select from {driver.address.identifier}.idempotency for update")
        async with asyncio.timeout(SLOW):
            meanwhile = (await driver.reserve(claim(limit=1, lease_for=HOUR))).jobs
        await connection.execute("rollback")
    finally:
        await connection.close()

    assert meanwhile == []
    async with asyncio.timeout(SLOW):
        await driver.reclaim(10)  # what was left keeps its hint
        assert len((await driver.reserve(claim(limit=1, lease_for=HOUR))).jobs) == 1


async def test_an_expired_lease_in_other_hands_counts_as_running(
    driver: PostgresDriver, database_url: str
) -> None:
    """It may be under extension this very moment: the claim neither waits for that nor exceeds the limit."""
    await driver.configure_queue(QueueSettings(queue=QUEUE, max_running=2))
    await driver.enqueue(new_jobs(6))
    await driver.reserve(claim(limit=2, lease_for=timedelta(milliseconds=1)))
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("begin")
        await connection.execute(f"select from {driver.address.identifier}.slot for update")
        async with asyncio.timeout(SLOW):
            none = (await driver.reserve(claim(limit=6, lease_for=HOUR))).jobs
        await connection.execute("rollback")
    finally:
        await connection.close()

    assert none == []
    assert len((await driver.reserve(claim(limit=6, lease_for=HOUR))).jobs) == 2


@pytest.mark.parametrize("sets", [1, None])
async def test_limits_of_harbor_and_queue_change_one_after_the_other(
    driver: PostgresDriver, database_url: str, sets: int | None
) -> None:
    """Both decide which running jobs are counted, and the second would not see what the first is about."""
    await driver.configure_queue(
        QueueSettings(queue=EVERY_QUEUE, max_running=9, execute_rate=RateLimit(9, HOUR))
    )
    await driver.configure_queue(QueueSettings(queue=QUEUE, max_running=1 if sets is None else None))
    await driver.enqueue(new_jobs(2))
    await driver.reserve(claim(limit=1, lease_for=HOUR))
    async with driver.another() as second, long_transaction(database_url) as holder:
        await holder.execute(f"select from {driver.address.identifier}.rate_usage for update")
        lift = QueueSettings(queue=EVERY_QUEUE, max_running=None, execute_rate=None)
        lifting = asyncio.create_task(driver.configure_queue(lift))
        await someone_waits(holder)  # with the places of the harbor gone, and not yet committed
        setting = asyncio.create_task(second.configure_queue(QueueSettings(queue=QUEUE, max_running=sets)))
        await asyncio.wait([setting], timeout=0.5)
        await holder.execute("rollback")
        await asyncio.gather(lifting, setting)

        assert await places(driver, holder) == (0 if sets is None else 1)
        assert len((await driver.reserve(claim(limit=1, lease_for=HOUR))).jobs) == (1 if sets is None else 0)


async def test_lifting_a_limit_locks_only_the_jobs_that_nothing_counts_any_more(
    driver: PostgresDriver, database_url: str
) -> None:
    for queue in ("here", "there"):
        await driver.configure_queue(QueueSettings(queue=queue, max_running=5))
        await driver.enqueue(new_jobs(1, queue=queue))
    await driver.reserve(claim(queues=["here", "there"], limit=2, lease_for=HOUR))
    async with long_transaction(database_url) as holder:
        rows = f"select from {driver.address.identifier}.job_state where queue = 'there'"
        assert len(await holder.fetch(f"{rows} for update")) == 1
        async with asyncio.timeout(SLOW):
            await driver.configure_queue(QueueSettings(queue="here", max_running=None))

        assert await places(driver, holder) == 1


async def test_a_sweep_waits_for_the_table_of_leases_with_no_hint_in_hand(
    driver: PostgresDriver, database_url: str
) -> None:
    """An ack that has the table would wait for that hint, and who sets a limit waits for both."""
    await driver.enqueue(new_jobs(1))
    await driver.reserve(claim(limit=1, lease_for=timedelta(milliseconds=1)))
    await asyncio.sleep(0.01)
    hints = f"select from {driver.address.identifier}.lease"
    async with long_transaction(database_url) as holder, long_transaction(database_url) as watcher:
        await holder.execute(f"lock table {driver.address.identifier}.lease in share row exclusive mode")
        sweeping = asyncio.create_task(driver.reclaim(10))
        await someone_waits(holder)
        free = await watcher.fetch(f"{hints} for update skip locked")
        await watcher.execute("rollback")
        await holder.execute("rollback")
        swept = await sweeping

    assert len(free) == 1
    assert len(swept) == 1


async def test_a_heartbeat_of_a_lost_lease_waits_for_nothing(
    driver: PostgresDriver, database_url: str
) -> None:
    await driver.configure_queue(QueueSettings(queue=QUEUE, max_running=5))
    await driver.enqueue(new_jobs(1))
    [lost] = (await driver.reserve(claim(limit=1, lease_for=timedelta(milliseconds=1)))).jobs
    await asyncio.sleep(0.01)
    assert len((await driver.reserve(claim(limit=1, lease_for=HOUR))).jobs) == 1
    async with long_transaction(database_url) as holder:
        rows = f"select from {driver.address.identifier}.slot for update"
        assert len(await holder.fetch(rows)) == 1
        async with asyncio.timeout(SLOW):
            [beat] = await driver.extend_leases([lost.lease], HOUR)

    assert isinstance(beat, LeaseLost)


async def test_a_heartbeat_is_stamped_when_it_has_its_place(
    driver: PostgresDriver, database_url: str
) -> None:
    """Who counts what runs locks the places of leases that are over: an earlier stamp would revive one."""
    await driver.configure_queue(QueueSettings(queue=QUEUE, max_running=5))
    await driver.enqueue(new_jobs(1))
    [job] = (await driver.reserve(claim(limit=1, lease_for=HOUR))).jobs
    async with long_transaction(database_url) as holder:
        await holder.execute(f"select from {driver.address.identifier}.slot for update")
        beating = asyncio.create_task(driver.extend_leases([job.lease], HOUR))
        await someone_waits(holder)
        before = await holder.fetchval("select clock_timestamp()")
        await holder.execute("rollback")
        [beat] = await beating

    assert isinstance(beat, Extended)
    assert beat.at >= before


@asynccontextmanager
async def long_transaction(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("begin")
        yield connection
    finally:
        await connection.close()


async def places(driver: PostgresDriver, session: asyncpg.Connection) -> int:
    """How many running jobs are counted."""
    return int(await session.fetchval(f"select count(*) from {driver.address.identifier}.slot"))
