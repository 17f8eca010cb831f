"""Plain jobs cost what they cost before there were workflows: calls, rows and bytes."""

from typing import Any

import asyncpg
import pytest

from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import claim, new_jobs
from taskharbor.testing.conformance.relatives import children, group
from tests.integration.postgres.test_children import Counted, taken

Shape = dict[str, tuple[int, int]]
"""Rows and bytes per table."""
# Recorded at 5a2f3c4, the last commit without workflows.
JOBS: Shape = {"job": (20, 3140)}
STORED: Shape = JOBS | {"waiting": (20, 1697), "job_state": (20, 2237)}
CLAIMED: Shape = JOBS | {"waiting": (10, 847), "job_state": (20, 2647), "lease": (1, 248)}
SETTLED: Shape = JOBS | {"job_state": (20, 3060), "lease": (1, 248), "finished": (1, 232)}
NOT_COUNTED = ("migration", "function_text", "tally_change")
"""The last counts jobs by queue and state, workflows or not; it came later."""


async def shape(driver: PostgresDriver, connection: Any) -> Shape:
    schema, found = driver.address.identifier, {}
    tables = "select relname from pg_class where relkind = 'r' and relnamespace = $1::regnamespace"
    for [name] in await connection.fetch(tables, schema):
        sizes = f"select count(*), coalesce(sum(pg_column_size(t.*)), 0)::int from {schema}.{name} t"
        rows, size = await connection.fetchrow(sizes)
        if rows and name not in NOT_COUNTED:
            found[name] = (rows, size)
    return found


async def test_plain_jobs_cost_what_they_cost_before_workflows(
    driver: PostgresDriver, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await asyncpg.connect(database_url)
    asked = Counted(driver, monkeypatch)

    await driver.enqueue(new_jobs(20, payload=b"x" * 64))
    assert len(asked.take()) == 1
    assert await shape(driver, connection) == STORED
    jobs = await taken(driver, 10)
    assert asked.take() == ["exchange"]
    assert await shape(driver, connection) == CLAIMED
    answer = await driver.exchange([Ack(job.lease) for job in jobs], claim(limit=10))
    assert asked.take() == ["exchange"]
    assert len(answer.claimed) == 10
    assert await shape(driver, connection) == SETTLED
    await connection.close()


async def test_plain_jobs_take_one_call_beside_a_family(
    driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = group()
    await driver.enqueue([root, *children(root, 1)])
    await driver.settle([Ack(job.lease) for job in await taken(driver, 1)])
    await driver.enqueue(new_jobs(20))
    asked = Counted(driver, monkeypatch)
    answer = await driver.exchange([Ack(job.lease) for job in await taken(driver, 10)], claim(limit=10))

    assert len(answer.claimed) == 10
    assert asked.take() == ["exchange", "exchange"]
