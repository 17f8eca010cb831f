"""A fresh store on a real Postgres, as a URL and as an open driver."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.testing.servers import PostgresServer, fresh_postgres_url, postgres_url


@pytest.fixture
def store_url() -> str:
    return fresh_postgres_url()


@pytest.fixture
def database_url(store_url: str) -> str:
    """The database of the store, as any library understands it."""
    return postgres_url()


@pytest.fixture
async def driver(store_url: str) -> AsyncIterator[PostgresDriver]:
    async with PostgresDriver.from_url(store_url) as driver:
        yield driver


@pytest.fixture
async def session(driver: PostgresDriver, database_url: str) -> AsyncIterator[Any]:
    """A connection of somebody else's, who may lock rows."""
    connection = await asyncpg.connect(database_url)
    await connection.execute(f"set search_path = {driver.address.identifier}")
    yield connection
    await connection.close()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may stop and kill; it keeps what it acknowledged."""
    with PostgresServer(durable=True) as server:
        yield server
