"""Jobs on the caller's own connection, on every driver that declares `tx`: they exist if and only if its
transaction commits."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.errors import InvalidArgument, SchemaOutOfDate
from taskharbor.testing.conformance.kit import (
    START,
    enqueue_one,
    found_ids,
    new_job,
    requires,
    reserve,
    unchanged,
)


@contextmanager
def sqlite_transaction(url: str) -> Iterator[sqlite3.Connection]:
    path = urlsplit(url).path.removeprefix("/")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("create table if not exists orders (number integer)")
        connection.execute("begin immediate")
        connection.execute("insert into orders values (7)")
        yield connection


@contextmanager
def postgres_transaction(url: str) -> Iterator[Any]:
    import psycopg

    with closing(psycopg.connect(urlsplit(url)._replace(query="").geturl())) as connection:
        connection.execute("create temporary table orders (number integer)")
        connection.execute("insert into orders values (7)")
        yield connection


# The scheme of a store → a transaction of the caller's own, with one row of theirs in it.
TRANSACTIONS: dict[str, Callable[[str], Any]] = {
    "sqlite": sqlite_transaction,
    "postgresql": postgres_transaction,
}


@pytest.fixture
async def driver(driver_url: str) -> AsyncIterator[Driver]:
    async with connect(driver_url) as driver:
        requires(driver, "tx")
        yield driver


@pytest.fixture
def transaction(driver: Driver, driver_url: str) -> Iterator[Any]:
    with TRANSACTIONS[urlsplit(driver_url).scheme](driver_url) as connection:
        yield connection


async def test_a_job_appears_with_the_commit(driver: Driver, transaction: Any) -> None:
    """A20: not before, for anybody; afterwards like any other."""
    job = new_job(payload=b"order 7")

    [answer] = driver.enqueue_blocking([job], now=START, tx=transaction)
    before = await driver.get([job.id], now=START)
    transaction.commit()
    taken = await reserve(driver, limit=5)

    assert (answer.id, answer.result, before) == (job.id, "created", [None])
    assert [(entry.id, entry.payload) for entry in taken] == [(job.id, b"order 7")]


async def test_a_job_is_gone_with_a_rollback(driver: Driver, transaction: Any) -> None:
    """A21 M12: it never was, and neither was its idempotency key."""
    job = new_job(idempotency_key=b"order-7", key=b"user-7")

    driver.enqueue_blocking([job], now=START, tx=transaction)
    transaction.rollback()
    again = await enqueue_one(driver, idempotency_key=b"order-7", key=b"user-7")

    assert again.result == "created"
    assert await found_ids(driver) == [again.id]


async def test_an_enqueue_that_is_refused_leaves_the_transaction_usable(
    driver: Driver, transaction: Any
) -> None:
    """A21: the caller may go on and commit the rest."""
    with pytest.raises(InvalidArgument):
        driver.enqueue_blocking([new_job(), new_job(priority=101)], now=START, tx=transaction)

    [answer] = driver.enqueue_blocking([new_job()], now=START, tx=transaction)
    transaction.commit()

    assert await found_ids(driver) == [answer.id]


async def test_something_that_is_no_transaction_is_refused(driver: Driver) -> None:
    """A20: and nothing is stored."""
    async with unchanged(driver):
        with pytest.raises(InvalidArgument):
            driver.enqueue_blocking([new_job()], now=START, tx=object())


# ------------------------------------------------------------------ on a driver that was never opened


@contextmanager
def sqlite_alone(url: str) -> Iterator[sqlite3.Connection]:
    path = urlsplit(url).path.removeprefix("/")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


@contextmanager
def postgres_alone(url: str) -> Iterator[Any]:
    import psycopg

    with closing(psycopg.connect(urlsplit(url)._replace(query="").geturl(), autocommit=True)) as connection:
        yield connection


# The scheme of a store → a connection of the caller's own that commits each statement.
ALONE: dict[str, Callable[[str], Any]] = {"sqlite": sqlite_alone, "postgresql": postgres_alone}


@pytest.fixture
def unopened(driver: Driver) -> Driver:
    return driver.another()


async def test_a_transaction_sees_its_own_jobs_before_the_commit(
    driver: Driver, unopened: Driver, transaction: Any
) -> None:
    """A20: `enqueue_on` and `get_on` need no open driver, and open none."""
    job, unknown = new_job(payload=b"order 7", key=b"user-7", headers={"a": "b"}), new_job()

    [answer] = unopened.enqueue_on(transaction, [job], now=START)
    [mine, none] = unopened.get_on(transaction, [job.id, unknown.id], now=START)
    others = await driver.get([job.id], now=START)
    transaction.commit()

    assert (answer.result, none, others, unopened.is_open) == ("created", None, [None], False)
    assert [mine] == await driver.get([job.id], now=START)


async def test_a_job_on_a_connection_is_gone_with_a_rollback(
    driver: Driver, unopened: Driver, transaction: Any
) -> None:
    """A21: with everything about it."""
    unopened.enqueue_on(transaction, [new_job(), new_job(idempotency_key=b"once")], now=START)
    transaction.rollback()

    assert await found_ids(driver) == []
    assert (await enqueue_one(driver, idempotency_key=b"once")).result == "created"


async def test_without_a_transaction_a_job_is_stored_at_once(
    driver: Driver, unopened: Driver, driver_url: str
) -> None:
    """A20: with `tx` the same connection is refused."""
    with ALONE[urlsplit(driver_url).scheme](driver_url) as connection:
        [answer] = unopened.enqueue_on(connection, [new_job()], now=START)
        [job] = unopened.get_on(connection, [answer.id], now=START)
        with pytest.raises(InvalidArgument):
            driver.enqueue_blocking([new_job()], now=START, tx=connection)

    assert [job] == await driver.get([answer.id], now=START)
    assert await found_ids(driver) == [answer.id]


async def test_a_refused_job_on_a_connection_leaves_its_transaction_usable(
    driver: Driver, unopened: Driver, transaction: Any
) -> None:
    """A21: arguments are checked before anything is sent."""
    with pytest.raises(InvalidArgument):
        unopened.enqueue_on(transaction, [new_job(priority=101)], now=START)
    with pytest.raises(InvalidArgument):
        unopened.get_on(transaction, ["no id"], now=START)
    assert unopened.enqueue_on(transaction, [], now=START) == []
    assert unopened.get_on(transaction, [], now=START) == []

    [answer] = unopened.enqueue_on(transaction, [new_job()], now=START)
    transaction.commit()

    assert await found_ids(driver) == [answer.id]


async def test_something_that_is_no_connection_is_refused(driver: Driver, unopened: Driver) -> None:
    """A20: and nothing is stored."""
    async with unchanged(driver):
        with pytest.raises(InvalidArgument):
            unopened.enqueue_on(object(), [new_job()], now=START)
        with pytest.raises(InvalidArgument):
            unopened.get_on(object(), [new_job().id], now=START)


async def test_a_store_that_is_not_made_is_named(driver: Driver, driver_url: str, tmp_path: Path) -> None:
    """V11: the answer says what to run, and nothing is made."""
    url = f"sqlite:///{tmp_path}/none.db"
    if urlsplit(driver_url).scheme != "sqlite":
        url = urlsplit(driver_url)._replace(query="schema=not_made").geturl()
    unopened = connect(url)
    with ALONE[urlsplit(url).scheme](url) as connection:
        for _ in range(2):
            with pytest.raises(SchemaOutOfDate, match="migrate up"):
                unopened.enqueue_on(connection, [new_job()], now=START)
            with pytest.raises(SchemaOutOfDate, match="migrate up"):
                unopened.get_on(connection, [new_job().id], now=START)
