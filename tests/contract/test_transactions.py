"""Jobs that exist if and only if the caller's own transaction commits, on every driver that declares `tx`."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.errors import InvalidArgument
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
