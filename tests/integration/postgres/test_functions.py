"""Functions in the database: `migrate` applies those whose text changed, beside workers that are older."""

import asyncio
import hashlib
from collections.abc import Iterator

import asyncpg
import psycopg
import pytest

from taskharbor.drivers.messages import Settled
from taskharbor.drivers.postgres import PostgresDriver, schema
from taskharbor.drivers.postgres.schema import (
    CALLED,
    FUNCTION_SET,
    FUNCTIONS,
    Functions,
    migrate,
)
from taskharbor.errors import SchemaOutOfDate, StoreRefused
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import QUEUE, claim, new_jobs
from taskharbor.testing.servers import postgres_url, run_name
from taskharbor.testing.servers.postgres import migrate_blocking

SCHEMA = f"functions_{run_name()}"
DIGESTS = {
    1: "ac3feca758fe2a7b",
    2: "5d6669a8d7621c1f",
    3: "b1d133b250695559",
    4: "848fd26e0bf108e0",
    5: "5ffcf3c65db2ba46",
    6: "419b6f004cce0bb2",
    7: "05e939f8c5dbbc49",
    8: "f410d8197ffa376a",
    9: "f1b35510cf0ae14e",
    10: "70d4f11a1eda3d23",
    11: "469a1d95922c6dca",
    12: "c829dea396158db3",
    13: "bdee169f55210e2b",
    14: "ef3b5854014786fc",
    15: "6620024f972dd620",
    16: "158e7b160193fb45",
    17: "950f6f80c396f7d8",
    18: "b0e17abcae62c723",
    19: "9fb68d369bc54589",
    20: "5d7a3a34f3a13bd3",
    21: "114b92392bd9d0eb",
    22: "ba0d85e77fe169a5",
}
"""The number of each set of functions, and a digest of it: who changes a function adds a line."""


@pytest.fixture
def url() -> Iterator[str]:
    base = f"{postgres_url()}?schema={SCHEMA}"
    migrate_blocking(base)
    yield base
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"drop schema if exists {SCHEMA} cascade".encode())


async def applied(url: str, functions: Functions) -> list[str]:
    connection = await asyncpg.connect(postgres_url())
    try:
        return await migrate(connection, PostgresDriver.from_url(url).address, functions)
    finally:
        await connection.close()


def changed(name: str, before: str, after: str, number: int = FUNCTION_SET + 1) -> Functions:
    """The functions of a later release, in which one of them is another."""
    text = FUNCTIONS.texts[name]
    assert before in text
    return Functions({**FUNCTIONS.texts, name: text.replace(before, after)}, number)


def test_the_number_of_the_set_rises_with_every_change() -> None:
    whole = hashlib.sha256("".join(FUNCTIONS.digests.values()).encode()).hexdigest()[:16]

    assert DIGESTS[FUNCTION_SET] == whole
    assert max(DIGESTS) == FUNCTION_SET


async def test_a_changed_function_is_applied_while_an_old_worker_goes_on(url: str) -> None:
    newer = changed("retention", "3600000000", "7200000000")
    async with PostgresDriver.from_url(url) as worker:
        done: list[bool] = []
        over = asyncio.Event()

        async def work() -> None:
            while not over.is_set() or len(done) < 50:
                await worker.enqueue(new_jobs(5))
                jobs = (await worker.reserve(claim(limit=5))).jobs
                answers = await worker.settle([Ack(job.lease) for job in jobs])
                done.extend(isinstance(answer, Settled) for answer in answers)

        working = asyncio.create_task(work())
        while len(done) < 10:
            await asyncio.sleep(0.01)
        assert await applied(url, newer) == ["function retention"]
        over.set()
        await working
        assert all(done)

        async with PostgresDriver.from_url(url) as another:  # by name, whatever the text
            assert (await another.count())[QUEUE].completed == len(done)
    with psycopg.connect(postgres_url()) as connection:
        kept = connection.execute(f"select {SCHEMA}.retention('any', 4)".encode()).fetchone()
    assert kept == (7200000000,)
    assert await applied(url, newer) == []


async def test_a_program_with_a_lower_number_changes_nothing(url: str) -> None:
    await applied(url, changed("retention", "3600000000", "7200000000"))

    assert await applied(url, FUNCTIONS) == []
    async with PostgresDriver.from_url(url) as older:
        assert await older.pending_migrations() == []
        assert "retention" in (await older.info()).details["functions"]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("retention", "(p_queue text, p_state integer)", "(p_queue text, p_state integer, p_more integer)"),
        ("retention", "(p_queue text, p_state integer)", "(p_queue text, p_kind integer)"),
        ("prune", "returns integer", "returns bigint"),
    ],
)
async def test_other_arguments_need_another_name(url: str, name: str, before: str, after: str) -> None:
    newer = changed(name, before, after)

    with pytest.raises(StoreRefused, match="needs a new name"):
        await applied(url, newer)

    assert await applied(url, FUNCTIONS) == []


async def test_a_store_without_a_function_that_is_called_is_refused(url: str) -> None:
    assert "exchange" in CALLED
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"drop function {SCHEMA}.exchange".encode())

    with pytest.raises(SchemaOutOfDate, match="function exchange is missing"):
        await PostgresDriver.from_url(url).open()


def test_every_file_is_a_function_of_its_name() -> None:
    for name, text in FUNCTIONS.texts.items():
        assert text.count("create or replace function {schema}." + name + "(") == 1, name
        assert text.count("create ") == 1, name
    assert schema.FUNCTIONS.number == FUNCTION_SET
