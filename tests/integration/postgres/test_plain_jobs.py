"""Plain jobs cost what they cost before there were workflows: calls, rows and bytes."""

from typing import Any

import pytest

from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import claim, new_jobs
from taskharbor.testing.conformance.relatives import children, group
from tests.integration.postgres.test_children import Counted, taken

Shape = dict[str, tuple[int, int]]
"""Rows and bytes per table."""
# As at 5a2f3c4, the last commit without workflows; every row counts with its padding.
JOBS: Shape = {"job": (20, 3140)}
STORED: Shape = JOBS | {"waiting": (20, 1700), "job_state": (20, 2240)}
CLAIMED: Shape = JOBS | {"waiting": (10, 850), "job_state": (20, 2650), "lease": (1, 248)}
SETTLED: Shape = JOBS | {"job_state": (20, 3060), "lease": (1, 248), "finished": (1, 232)}
NOT_COUNTED = ("migration", "function_text", "tally", "tally_change", "ledger")
"""Tallies count jobs by queue and state, workflows or not; they came later. `ledger` is of other tests."""


async def shape(driver: PostgresDriver, session: Any) -> Shape:
    found: Shape = {}
    schema = driver.address.identifier
    tables = "select relname from pg_class where relkind = 'r' and relnamespace = $1::regnamespace"
    for [name] in await session.fetch(tables, schema):
        # `t.*` would be read from the table, where the first row counts without the padding of the others.
        sizes = f"select count(*), coalesce(sum(pg_column_size(row(t.*))), 0)::int from {schema}.{name} t"
        rows, size = await session.fetchrow(sizes)
        if rows and name not in NOT_COUNTED:
            found[name] = (rows, size)
    return found


async def test_plain_jobs_cost_what_they_cost_before_workflows(
    driver: PostgresDriver, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counted(driver, monkeypatch)

    await driver.enqueue(new_jobs(20, payload=b"x" * 64))
    assert len(asked.take()) == 1
    assert await shape(driver, session) == STORED
    jobs = await taken(driver, 10)
    assert asked.take() == ["exchange"]
    assert await shape(driver, session) == CLAIMED
    answer = await driver.exchange([Ack(job.lease) for job in jobs], claim(limit=10))
    assert asked.take() == ["exchange"]
    assert len(answer.claimed) == 10
    assert await shape(driver, session) == SETTLED


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
