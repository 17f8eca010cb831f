"""Plain jobs cost what they cost before there were workflows: calls, statements inside, rows and bytes."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import asyncpg
import pytest

from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.model.job import JobRecord
from taskharbor.model.settlement import Ack, Retry
from taskharbor.testing.conformance.kit import HOUR, LEASE, TYPE, claim, new_jobs
from taskharbor.testing.conformance.relatives import children, group
from taskharbor.testing.servers import PostgresServer
from taskharbor.testing.servers.postgres import migrate_blocking
from tests.integration.postgres.test_children import Counted, taken

T = TypeVar("T")
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


COUNTING = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "all"}
RAN = "select sum(calls)::int from pg_stat_statements where query not like '%pg_stat_statements%'"
STATEMENTS = {  # of a call about a hundred jobs, with those inside its functions, at 5a2f3c4
    "store": 9,
    "store for later": 9,
    "ack and claim": 17,
    "ack and claim of two types": 20,
    "extend": 5,
    "ack": 7,
    "ack of two queues": 8,
    "retry": 17,
    "claim in vain": 7,
}


class Meter:
    """How many statements a server runs for a call. The least counts: now and then one adds up tallies."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.least: dict[str, int] = {}

    async def of(self, what: str, call: Awaitable[T]) -> T:
        before = await self._session.fetchval(RAN)
        answer = await call
        ran = await self._session.fetchval(RAN) - before
        self.least[what] = min(ran, self.least.get(what, ran))
        return answer


@pytest.fixture
async def counted() -> AsyncIterator[tuple[PostgresDriver, Meter]]:
    with PostgresServer(settings=COUNTING) as server:
        session = await asyncpg.connect(server.url)
        await session.execute("create extension pg_stat_statements")
        url = f"{server.url}?schema=counted"
        migrate_blocking(url)
        async with PostgresDriver.from_url(url) as driver:
            yield driver, Meter(session)
        await session.close()


async def running(driver: PostgresDriver, queue: str) -> list[JobRecord]:
    await driver.enqueue(new_jobs(100, queue=queue))
    return (await driver.reserve(claim(queues=[queue], limit=100))).jobs


def acks(jobs: list[JobRecord]) -> list[Ack]:
    return [Ack(job.lease) for job in jobs]


async def test_no_call_about_plain_jobs_runs_more_statements_than_before_workflows(
    counted: tuple[PostgresDriver, Meter],
) -> None:
    driver, meter = counted
    of_types = claim(limit=100, types=(TYPE, "other"))
    for turn in range(3):
        await meter.of("store", driver.enqueue(new_jobs(100)))
        await meter.of("store for later", driver.enqueue(new_jobs(100, delay=HOUR)))
        await driver.enqueue(new_jobs(200))
        jobs = await taken(driver, 100)
        for what, wanted in (("ack and claim", claim(limit=100)), ("ack and claim of two types", of_types)):
            jobs = (await meter.of(what, driver.exchange(acks(jobs), wanted))).claimed
            assert len(jobs) == 100
        await meter.of("ack", driver.settle(acks(jobs)))
        both = [*await running(driver, "one"), *await running(driver, "two")]
        await meter.of("ack of two queues", driver.settle(acks(both)))
        again = await running(driver, f"again-{turn}")
        await meter.of("extend", driver.extend_leases([job.lease for job in again], LEASE))
        await meter.of("retry", driver.settle([Retry(job.lease) for job in again]))
        await meter.of("claim in vain", driver.reserve(claim(queues=["idle"])))

    more = {what: count for what, count in meter.least.items() if count > STATEMENTS[what]}
    assert not more
    assert meter.least.keys() == STATEMENTS.keys()
