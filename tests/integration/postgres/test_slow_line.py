"""Ten round trips a lease: heartbeats arrive while every claim waits at the gate of a limit."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from taskharbor.drivers.messages import Extended
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import QUEUE, claim, new_jobs
from tests.chaos.framing import PostgresFraming
from tests.chaos.proxy import Proxy
from tests.integration.postgres.test_gates import lock_gate, someone_waits

LEASE = timedelta(seconds=4)
LEG = 0.2  # seconds, there as well as back
WORKERS = 3


@pytest.mark.parametrize("level", [QUEUE, EVERY_QUEUE])
async def test_leases_hold_while_every_claim_waits_at_a_gate(
    driver: PostgresDriver, store_url: str, database_url: str, level: str
) -> None:
    port = int(database_url.rpartition("@")[2].partition("/")[0].rpartition(":")[2])
    await driver.configure_queue(QueueSettings(queue=level, max_running=20))
    await driver.enqueue(new_jobs(2 * WORKERS))
    async with Proxy(port, PostgresFraming) as line, AsyncExitStack() as stack:
        url = store_url.replace(f":{port}/", f":{line.port}/")
        workers = [await stack.enter_async_context(PostgresDriver.from_url(url)) for _ in range(WORKERS)]
        line.delay = lambda: LEG
        wanted = claim(limit=2, lease_for=LEASE)
        jobs = [taken.jobs for taken in await asyncio.gather(*(one.reserve(wanted) for one in workers))]
        gate = await stack.enter_async_context(lock_gate(level, driver, database_url))
        claims = [asyncio.create_task(one.reserve(claim(limit=1))) for one in workers]
        await someone_waits(gate)
        for _ in range(10):
            beats = await asyncio.gather(
                *(
                    one.extend_leases([job.lease for job in some], LEASE)
                    for one, some in zip(workers, jobs, strict=True)
                )
            )
            assert all(isinstance(beat, Extended) for some in beats for beat in some)
            await asyncio.sleep(LEASE.total_seconds() / 5)
        assert not any(one.done() for one in claims)
        assert await driver.reclaim(10) == []
        records = await driver.get([job.id for some in jobs for job in some])
        line.delay = None
        await gate.execute("rollback")
        assert [one.jobs for one in await asyncio.gather(*claims)] == [[]] * WORKERS

    assert [(job.state, job.starts) for job in records if job] == [(JobState.RUNNING, 1)] * 2 * WORKERS
