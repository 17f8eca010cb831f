"""Work and acknowledgement in one transaction: both happen, or neither."""
# ruff: noqa: PT012 - the transaction is what raises, and its body belongs to it

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.errors import DriverError, JobNotInflight, LeaseLost, LeaseMismatch
from taskharbor.model.job import Lease
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import WRONG_TOKEN, claim, new_job


@pytest.fixture
async def ledger(database_url: str) -> Any:
    """A table of the user's own, in the same database."""
    connection = await asyncpg.connect(database_url)
    await connection.execute("drop table if exists public.ledger; create table public.ledger (job text)")
    yield connection
    await connection.execute("drop table public.ledger")
    await connection.close()


async def taken(driver: PostgresDriver, lease_for: timedelta = timedelta(seconds=30)) -> Lease:
    await driver.enqueue([new_job()])
    [job] = await driver.reserve(claim(lease_for=lease_for))
    return job.lease


async def test_the_commit_carries_the_ack(driver: PostgresDriver, ledger: Any) -> None:
    lease = await taken(driver)

    async with driver.transaction(lease, result=b"42") as connection:
        await connection.execute("insert into public.ledger values ($1)", lease.job_id)

    [job] = await driver.get([lease.job_id])
    assert job is not None
    assert (job.state, job.result, job.settled_token) == (JobState.COMPLETED, b"42", lease.token)
    assert await ledger.fetchval("select count(*) from public.ledger") == 1
    [late] = await driver.settle([Ack(lease)])
    assert isinstance(late, JobNotInflight)


async def test_an_error_in_the_handler_undoes_its_work_and_leaves_the_lease(
    driver: PostgresDriver, ledger: Any
) -> None:
    lease = await taken(driver)

    with pytest.raises(ZeroDivisionError):
        async with driver.transaction(lease) as connection:
            await connection.execute("insert into public.ledger values ($1)", lease.job_id)
            _ = 1 / 0

    assert await ledger.fetchval("select count(*) from public.ledger") == 0
    [job] = await driver.get([lease.job_id])
    assert job is not None
    assert job.state is JobState.RUNNING


async def test_a_stale_token_aborts_the_commit(driver: PostgresDriver, ledger: Any) -> None:
    lease = await taken(driver)
    stale = Lease(lease.job_id, WRONG_TOKEN)

    with pytest.raises(LeaseMismatch):
        async with driver.transaction(stale) as connection:
            await connection.execute("insert into public.ledger values ($1)", lease.job_id)

    assert await ledger.fetchval("select count(*) from public.ledger") == 0


async def test_a_lease_that_ran_out_meanwhile_aborts_the_commit(driver: PostgresDriver, ledger: Any) -> None:
    lease = await taken(driver, timedelta(milliseconds=30))

    with pytest.raises(LeaseLost):
        async with driver.transaction(lease) as connection:
            await connection.execute("insert into public.ledger values ($1)", lease.job_id)
            await connection.execute("select pg_sleep(0.05)")

    assert await ledger.fetchval("select count(*) from public.ledger") == 0


async def test_a_connection_killed_before_the_commit_leaves_nothing(
    driver: PostgresDriver, ledger: Any
) -> None:
    lease = await taken(driver)

    with pytest.raises(DriverError):
        async with driver.transaction(lease) as connection:
            await connection.execute("insert into public.ledger values ($1)", lease.job_id)
            pid = connection.get_server_pid()
            await ledger.fetchval("select pg_terminate_backend($1, 5000)", pid)

    assert await ledger.fetchval("select count(*) from public.ledger") == 0
    async with driver.transaction(lease) as connection:
        await connection.execute("insert into public.ledger values ($1)", lease.job_id)
    assert await ledger.fetchval("select count(*) from public.ledger") == 1
