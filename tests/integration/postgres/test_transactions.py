"""Enqueueing inside a transaction of the caller's own, with each real library."""

# ruff: noqa: PT012 - the transaction is what raises, and its body belongs to it

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC
from typing import Any

import asyncpg
import django
import psycopg
import psycopg2.extras  # type: ignore[import-untyped]
import pytest
import sqlalchemy
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from taskharbor.drivers.messages import EnqueueResult
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.errors import InvalidArgument, SchemaOutOfDate
from taskharbor.testing.conformance.kit import new_job

Database = str


class Undo(Exception):
    """Raised to make a library roll back its transaction."""


# ------------------------------------------------------------------ blocking libraries


@contextmanager
def psycopg_connection(database: Database) -> Iterator[Any]:
    with psycopg.connect(database) as connection:
        yield connection


@contextmanager
def psycopg_with_named_rows(database: Database) -> Iterator[Any]:
    from psycopg.rows import dict_row

    elsewhere = "-c timezone=America/New_York"
    with psycopg.connect(database, row_factory=dict_row, options=elsewhere) as connection:
        yield connection


@contextmanager
def psycopg2_connection(database: Database) -> Iterator[Any]:
    connection = psycopg2.connect(database, cursor_factory=psycopg2.extras.DictCursor)
    try:
        with connection:
            yield connection
    finally:
        connection.close()


@contextmanager
def sqlalchemy_session(database: Database) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with Session(engine) as session, session.begin():
            yield session
    finally:
        engine.dispose()


@contextmanager
def sqlalchemy_connection(database: Database) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def django_connection(database: Database) -> Iterator[Any]:
    with django_atomic(database) as connection:
        yield connection


@contextmanager
def django_alias(database: Database) -> Iterator[Any]:
    with django_atomic(database):
        yield "default"


@contextmanager
def django_atomic(database: Database) -> Iterator[Any]:
    if not settings.configured:
        parts = conninfo_to_dict(database)
        names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
        default = {names[name]: str(value) for name, value in parts.items() if name in names}
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **default}})
        django.setup()
    from django.db import connection, transaction

    try:
        with transaction.atomic():
            yield connection
    finally:
        connection.close()


BLOCKING = [
    psycopg_connection,
    psycopg2_connection,
    psycopg_with_named_rows,
    sqlalchemy_session,
    sqlalchemy_connection,
    django_connection,
    django_alias,
]


@pytest.mark.parametrize("begin", BLOCKING, ids=lambda begin: begin.__name__)
async def test_a_committed_job_is_there_and_one_rolled_back_never_was(
    driver: PostgresDriver, database_url: Database, begin: Callable[[Database], Any]
) -> None:
    kept, undone = new_job(), new_job()

    def enqueue_both() -> None:
        with begin(database_url) as tx:
            [answer] = driver.enqueue_blocking([kept], tx=tx)
            assert answer.result is EnqueueResult.CREATED
        with pytest.raises(Undo), begin(database_url) as tx:
            driver.enqueue_blocking([undone], tx=tx)
            raise Undo

    await asyncio.to_thread(enqueue_both)

    found = await driver.get([kept.id, undone.id])
    assert [job and job.id for job in found] == [kept.id, None]


@pytest.mark.parametrize("begin", BLOCKING, ids=lambda begin: begin.__name__)
async def test_nobody_sees_the_job_before_the_commit(
    driver: PostgresDriver, database_url: Database, begin: Callable[[Database], Any]
) -> None:
    job = new_job(key=b"one", idempotency_key=b"once")
    seen = []

    def enqueue() -> None:
        with begin(database_url) as tx:
            driver.enqueue_blocking([job], tx=tx)
            seen.extend(asyncio.run_coroutine_threadsafe(driver.get([job.id]), loop).result(10))

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(enqueue)

    assert seen == [None]
    assert (await driver.get([job.id]))[0] is not None


# ------------------------------------------------------------------ without an open driver


@pytest.mark.parametrize("begin", BLOCKING, ids=lambda begin: begin.__name__)
async def test_a_connection_reads_the_job_that_it_has_stored(
    driver: PostgresDriver, database_url: Database, begin: Callable[[Database], Any]
) -> None:
    """The same record as any other reader gets, after the commit: every column through every library."""
    job = new_job(payload=b"\x00\xff%s", headers={"a": "b:c"}, key=b"k", idempotency_key=b"i")
    unopened = driver.another()

    def store_and_read() -> Any:
        with begin(database_url) as connection:
            unopened.enqueue_on(connection, [job])
            return unopened.get_on(connection, [new_job().id, job.id])

    unknown, seen = await asyncio.to_thread(store_and_read)

    assert (unknown, unopened.is_open) == (None, False)
    assert [seen] == await driver.get([job.id])
    assert seen.created_at.tzinfo is UTC


async def test_an_async_connection_is_refused_where_a_blocking_one_is_needed(
    driver: PostgresDriver, database_url: Database
) -> None:
    async with asyncpg_connection(database_url) as connection:
        with pytest.raises(InvalidArgument, match="async connection"):
            driver.enqueue_on(connection, [new_job()])


def test_psycopg2_learns_of_a_missing_schema_too(database_url: Database) -> None:
    unopened = PostgresDriver.from_url(f"{database_url}?schema=not_made")
    with (
        psycopg2_connection(database_url) as connection,
        pytest.raises(SchemaOutOfDate, match="migrate up"),
    ):
        unopened.enqueue_on(connection, [new_job()])


# ------------------------------------------------------------------ async libraries


@asynccontextmanager
async def psycopg_async(database: Database) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(database) as connection:
        yield connection


@asynccontextmanager
async def asyncpg_connection(database: Database) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_from_a_pool(database: Database) -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(database, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


@asynccontextmanager
async def sqlalchemy_async_session_on_asyncpg(database: Database) -> AsyncIterator[Any]:
    engine = create_async_engine(database.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session
    finally:
        await engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_connection_on_asyncpg(database: Database) -> AsyncIterator[Any]:
    engine = create_async_engine(database.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_session_on_psycopg(database: Database) -> AsyncIterator[Any]:
    engine = create_async_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session
    finally:
        await engine.dispose()


ASYNC = [
    psycopg_async,
    asyncpg_connection,
    asyncpg_from_a_pool,
    sqlalchemy_async_session_on_asyncpg,
    sqlalchemy_async_connection_on_asyncpg,
    sqlalchemy_async_session_on_psycopg,
]


@pytest.mark.parametrize("begin", ASYNC, ids=lambda begin: begin.__name__)
async def test_an_async_transaction_carries_the_job_too(
    driver: PostgresDriver, database_url: Database, begin: Callable[[Database], Any]
) -> None:
    """The enqueue is the first statement: where a library begins lazily, it must be inside all the same."""
    kept, undone = new_job(headers={"a": "b:c"}), new_job()

    async with begin(database_url) as tx:
        [answer] = await driver.enqueue_in([kept], tx=tx)
        assert answer.result is EnqueueResult.CREATED
        with pytest.raises(InvalidArgument, match="use `await aenqueue"):
            driver.enqueue_blocking([kept], tx=tx)
        assert await driver.get([kept.id]) == [None]
    with pytest.raises(Undo):
        async with begin(database_url) as tx:
            await driver.enqueue_in([undone], tx=tx)
            raise Undo

    found = await driver.get([kept.id, undone.id])
    assert [job and job.headers for job in found] == [{"a": "b:c"}, None]


# ------------------------------------------------------------------ refusals


async def test_a_connection_without_a_transaction_is_refused(
    driver: PostgresDriver, database_url: Database
) -> None:
    connection = await asyncpg.connect(database_url)
    with pytest.raises(InvalidArgument, match="begin"):
        await driver.enqueue_in([new_job()], tx=connection)
    await connection.close()

    with (
        psycopg.connect(database_url, autocommit=True) as blocking,
        pytest.raises(InvalidArgument, match="begin"),
    ):
        driver.enqueue_blocking([new_job()], tx=blocking)


async def test_something_that_is_no_connection_is_refused(driver: PostgresDriver) -> None:
    with pytest.raises(InvalidArgument, match="no connection of"):
        driver.enqueue_blocking([new_job()], tx=object())


async def test_a_repeated_enqueue_inside_a_transaction_is_a_duplicate(
    driver: PostgresDriver, database_url: Database
) -> None:
    job = new_job()
    with psycopg.connect(database_url) as connection:
        driver.enqueue_blocking([job], tx=connection)
        [again] = driver.enqueue_blocking([job], tx=connection)

    assert again.result is EnqueueResult.DUPLICATE
    assert (await driver.count())[job.queue].total == 1


@pytest.mark.parametrize("makes_session", [True, False], ids=["session", "connection"])
async def test_sqlalchemy_in_autocommit_mode_is_no_transaction(driver, database_url, makes_session):
    url = database_url.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    job = new_job()
    try:
        with Session(engine) if makes_session else engine.connect() as tx:
            with pytest.raises(InvalidArgument, match="AUTOCOMMIT"):
                driver.enqueue_blocking([job], tx=tx)
            tx.rollback()
    finally:
        engine.dispose()

    assert await driver.get([job.id]) == [None]


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("makes_session", [True, False], ids=["session", "connection"])
async def test_async_sqlalchemy_in_autocommit_mode_is_no_transaction(
    driver, database_url, library, makes_session
):
    url = database_url.replace("postgresql://", f"postgresql+{library}://")
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    job = new_job()
    try:
        async with AsyncSession(engine) if makes_session else engine.connect() as tx:
            with pytest.raises(InvalidArgument, match="AUTOCOMMIT"):
                await driver.enqueue_in([job], tx=tx)
            await tx.rollback()
    finally:
        await engine.dispose()

    assert await driver.get([job.id]) == [None]
