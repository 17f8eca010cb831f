"""What a driver says at its start when it cannot work, and that it never says a password."""

import asyncio
import logging
from collections.abc import Iterator
from urllib.parse import quote

import psycopg
import pytest

from taskharbor.drivers.loading import connect
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.schema import FUNCTIONS, MIGRATIONS, scripts
from taskharbor.errors import (
    ConfigurationError,
    DriverUnavailable,
    SchemaOutOfDate,
    StoreRefused,
    TaskHarborError,
)
from taskharbor.testing.servers import PostgresServer, free_port, postgres_url, run_name
from taskharbor.testing.servers.postgres import migrate_blocking

BARE = f"bare_{run_name()}"
ALL = [*(migration.name for migration in MIGRATIONS), *(f"function {name}" for name in FUNCTIONS.texts)]
SECRET = "hunter2-geheim"


@pytest.fixture(scope="module")
def strict_server() -> Iterator[PostgresServer]:
    """A server that wants a password from everybody but its owner."""
    with PostgresServer() as server:
        (server.folder / "data" / "pg_hba.conf").write_text(
            "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )
        server.stop()
        server.start()
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"create role clerk login password '{SECRET}'".encode())
        yield server


def url_of(server: PostgresServer, password: str, database: str = "postgres", options: str = "") -> str:
    return f"postgresql://clerk:{password}@127.0.0.1:{server.port}/{database}{options}"


async def refusal(url: str) -> TaskHarborError:
    with pytest.raises(TaskHarborError) as caught:
        async with connect(url):
            pass
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        assert SECRET not in repr(error)
        error = error.__cause__
    return caught.value


async def test_a_wrong_password_is_refused_without_repeating_it(
    strict_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        error = await refusal(url_of(strict_server, f"{SECRET}-wrong"))

    assert isinstance(error, StoreRefused)
    assert "does not let us in" in str(error)
    assert SECRET not in caplog.text


async def test_a_missing_database_is_named(strict_server: PostgresServer) -> None:
    error = await refusal(url_of(strict_server, SECRET, "nowhere"))

    assert isinstance(error, StoreRefused)
    assert "nowhere" in str(error)


async def test_a_missing_schema_names_the_command(strict_server: PostgresServer) -> None:
    error = await refusal(url_of(strict_server, SECRET))

    assert isinstance(error, SchemaOutOfDate)
    assert "taskharbor migrate up" in str(error)
    assert error.pending == tuple(migration.name for migration in MIGRATIONS)


async def test_a_role_without_rights_gets_an_error_that_says_so(strict_server: PostgresServer) -> None:
    migrate_blocking(f"{strict_server.url}?schema=closed")

    error = await refusal(url_of(strict_server, SECRET, options="?schema=closed"))

    assert isinstance(error, StoreRefused)
    assert "may not" in str(error)


async def test_a_read_only_database_is_refused(strict_server: PostgresServer) -> None:
    with psycopg.connect(strict_server.url, autocommit=True) as connection:
        connection.execute("create database frozen")
        connection.execute("alter database frozen set default_transaction_read_only = on")

    url = strict_server.url.removesuffix("postgres") + "frozen"
    error = await refusal(url)

    assert isinstance(error, StoreRefused)
    assert "read-only" in str(error)
    with pytest.raises(StoreRefused, match="read-only"):  # what looks, as `doctor`, says the same as a worker
        await connect(url).open_to_look()


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    error = await refusal(f"postgresql://clerk:{SECRET}@127.0.0.1:{free_port()}/postgres")

    assert isinstance(error, DriverUnavailable)
    assert error.done is False


async def test_neither_driver_nor_address_shows_the_password(strict_server: PostgresServer) -> None:
    driver = PostgresDriver.from_url(url_of(strict_server, SECRET, options="?schema=shown"))
    migrate_blocking(f"{strict_server.url}?schema=shown")
    with psycopg.connect(strict_server.url, autocommit=True) as connection:
        connection.execute("grant all on schema shown to clerk")
        connection.execute("grant all on all tables in schema shown to clerk")
        connection.execute("grant all on all sequences in schema shown to clerk")

    async with driver:
        shown = f"{driver!r} {driver.address!r} {await driver.info()}"

    assert SECRET not in shown
    assert "127.0.0.1" in shown


@pytest.mark.parametrize("option", ["schema=No-Such", "pool_size=none", "pooler=maybe", "schema=1st"])
def test_an_option_that_makes_no_sense_is_refused_at_once(option: str) -> None:
    with pytest.raises(ConfigurationError):
        connect(f"postgresql://localhost/jobs?{option}")


@pytest.mark.parametrize(
    "rest",
    ["127.0.0.1:none/postgres", "127.0.0.1:1/postgres?sslmode=maybe", "127.0.0.1:1/postgres?no_such_thing=1"],
)
async def test_an_address_that_makes_no_sense_is_refused_without_its_password(rest: str) -> None:
    await refusal(f"postgresql://clerk:{SECRET}@{rest}")


async def test_a_listener_that_cannot_connect_keeps_the_password_to_itself(
    bare_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    migrate_blocking(bare_url)
    nowhere = quote(f"postgresql://clerk:{SECRET}@127.0.0.1:{free_port()}/postgres")
    with caplog.at_level(logging.DEBUG):
        async with connect(f"{bare_url}&listen_url={nowhere}") as driver:
            hints = driver.wakeups(["default"], "worker-a")
            async with asyncio.timeout(30):
                while "polling goes on" not in caplog.text:
                    await asyncio.sleep(0.01)
            await hints.aclose()

    assert SECRET not in caplog.text
    assert SECRET not in repr(driver.address)  # type: ignore[attr-defined]


# ------------------------------------------------------------------ schema


@pytest.fixture
def bare_url() -> Iterator[str]:
    """A schema that nobody has migrated."""
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        yield f"{postgres_url()}?schema={BARE}"
        connection.execute(f"drop schema if exists {BARE} cascade".encode())


async def test_many_migrate_at_once_and_each_migration_is_applied_once(bare_url: str) -> None:
    drivers = [await PostgresDriver.from_url(bare_url).open_unmigrated() for _ in range(5)]
    assert await drivers[0].pending_migrations() == ALL

    applied = await asyncio.gather(*(driver.migrate() for driver in drivers))

    assert sorted(applied) == [[], [], [], [], ALL]
    assert await drivers[0].pending_migrations() == []
    for driver in drivers:
        await driver.close()
    async with connect(bare_url) as opened:
        assert (await opened.info()).schema == MIGRATIONS[-1].name


async def test_the_script_for_hands_does_the_same(bare_url: str) -> None:
    script = "".join(text for _, text in scripts(PostgresDriver.from_url(bare_url).address))
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(script.encode())

    async with connect(bare_url) as driver:
        assert await driver.pending_migrations() == []


async def test_a_step_ahead_that_only_adds_is_fine_and_one_that_takes_away_is_not(bare_url: str) -> None:
    migrate_blocking(bare_url)
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"insert into {BARE}.migration (name) values ('9001_more.pre')".encode())
        async with connect(bare_url) as driver:
            assert await driver.count() == {}

        connection.execute(f"insert into {BARE}.migration (name) values ('9002_less.post')".encode())

    error = await refusal(bare_url)
    assert isinstance(error, SchemaOutOfDate)
    assert "newer" in str(error)


async def test_a_store_of_an_unreleased_version_is_refused_in_one_sentence(bare_url: str) -> None:
    migrate_blocking(bare_url)
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"delete from {BARE}.migration".encode())
        connection.execute(f"insert into {BARE}.migration (name) values ('0001_tables.pre')".encode())

    error = await refusal(bare_url)
    assert isinstance(error, StoreRefused)
    assert "made by an unreleased version" in str(error)
