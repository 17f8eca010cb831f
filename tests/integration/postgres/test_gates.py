"""Who waits at the gate of a limit keeps nobody waiting: neither heartbeats, nor sweeps, nor cancels."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

from taskharbor.drivers.messages import CancelResult, Extended, Settled
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.model.job import Progress
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings
from taskharbor.model.settlement import Ack, Fail, Settlement
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import HOUR, QUEUE, claim, new_jobs
from tests.integration.postgres.waiting import someone_waits_for

SLOW = 20.0


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
