"""The store of every release is brought up and worked on: nothing of it is lost, and its jobs run."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from taskharbor import Query
from taskharbor.drivers.loading import connect
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState
from taskharbor.testing.servers.postgres import postgres_url
from tools.fixture_store import FIXTURES, LATER, SCHEMA, program

VERSIONS = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())
ENDED = {
    "done@example.com": JobState.COMPLETED,
    "the letter box is full": JobState.FAILED,
    "cancelled@example.com": JobState.CANCELLED,
    "later@example.com": JobState.SCHEDULED,
}
WAITED = {"blocked@example.com": JobState.COMPLETED, "ready@example.com": JobState.COMPLETED}
"""What waits is run. The job whose worker is lost and the one blocked behind it have become one."""


def test_a_store_of_every_release_is_kept() -> None:
    assert "0.1.0" in VERSIONS


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sqlite_store(version: str, tmp_path: Path) -> str:
    """A copy of the file, in which the lease of the lost worker is over."""
    shutil.copy(FIXTURES / version / "jobs.db", tmp_path / "jobs.db")
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def postgres_store(version: str) -> Iterator[str]:
    """A database of its own with what the dump holds."""
    server, name = postgres_url(), f"kept_{version.replace('.', '_')}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"drop database if exists {name} with (force)".encode())
        connection.execute(f"create database {name}".encode())
    url = urlsplit(server)._replace(path=f"/{name}").geturl()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute((FIXTURES / version / "jobs.sql").read_bytes())
    yield f"{url}{'&' if '?' in url else '?'}schema={SCHEMA}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)".encode())


def test_a_kept_sqlite_store_goes_on(sqlite_store: str) -> None:
    asyncio.run(goes_on(sqlite_store))


def test_a_kept_postgres_store_goes_on(postgres_store: str) -> None:
    asyncio.run(goes_on(postgres_store))


async def goes_on(url: str) -> None:
    """Migrate it, look at what has ended, run what waits, and repeat an enqueue of before."""
    await migrate(url)
    harbor, send, _ = program(url)
    async with harbor:
        before = await jobs(url)
        done = before["done@example.com"]
        assert await (await harbor.aget(done.id)).aresult(timeout="30s") == "sent to done@example.com"
        assert done.headers == {"trace": "abc"}
        assert {name: before[name].state for name in ENDED} == ENDED
        again = await send.using(idempotency_key="order/1").aenqueue("other@example.com")
        assert again.id == before["later@example.com"].id
        assert (await harbor.queue("mail").arules()).max_running == 50
        assert [stored.schedule.name for stored in await harbor.schedules.alist()] == ["nightly"]

        await harbor.worker().arun(until_idle=True)

        after = await jobs(url)
        assert {name: after[name].state for name in (*ENDED, *WAITED)} == ENDED | WAITED
        assert after["later@example.com"].run_at == LATER


async def migrate(url: str) -> None:
    driver = connect(url)
    if isinstance(driver, PostgresDriver):
        await driver.open_unmigrated()
        await driver.migrate()
        await driver.close()


async def jobs(url: str) -> dict[str, JobRecord]:
    """Every job, by its only argument."""
    async with connect(url) as driver:
        page = await driver.find(Query(limit=100))
    return {re.findall(rb'"([^"]+)"[\]}]', job.payload)[0].decode(): job for job in page.jobs}
