"""A transaction that carries an ack, on a connection that is killed; integration/completion has the rest."""
# ruff: noqa: PT012 - the transaction is what raises, and its body belongs to it

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.errors import DriverError
from taskharbor.model.job import Lease
from taskharbor.testing.conformance.kit import claim, new_job
from taskharbor.testing.servers import run_name

LEDGER = f"public.ledger_{run_name()}"


@pytest.fixture
async def ledger(database_url: str) -> Any:
    """A table of the user's own, in the same database."""
    connection = await asyncpg.connect(database_url)
    await connection.execute(f"create table {LEDGER} (job text)")
    yield connection
    await connection.execute(f"drop table {LEDGER}")
    await connection.close()


async def taken(driver: PostgresDriver, lease_for: timedelta = timedelta(seconds=30)) -> Lease:
    await driver.enqueue([new_job()])
    [job] = (await driver.reserve(claim(lease_for=lease_for))).jobs
    return job.lease


async def test_a_connection_killed_before_the_commit_leaves_nothing(
    driver: PostgresDriver, ledger: Any
) -> None:
    lease = await taken(driver)

    with pytest.raises(DriverError):
        async with driver.transaction(lease) as connection:
            await connection.execute(f"insert into {LEDGER} values ($1)", lease.job_id)
            pid = connection.get_server_pid()
            await ledger.fetchval("select pg_terminate_backend($1, 5000)", pid)

    assert await ledger.fetchval(f"select count(*) from {LEDGER}") == 0
    async with driver.transaction(lease) as connection:
        await connection.execute(f"insert into {LEDGER} values ($1)", lease.job_id)
    assert await ledger.fetchval(f"select count(*) from {LEDGER}") == 1
