"""Enqueueing inside a transaction of the caller's own on SQLite, with each library that has one inside."""

# ruff: noqa: PT012 - the transaction is what raises, and its body belongs to it

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from taskharbor.drivers.messages import Wakeup, WakeupKind
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.errors import InvalidArgument
from taskharbor.harbor import Harbor
from tests.integration.sqlite.stores import claim, driver_on, is_sound, new_job
from tests.integration.sqlite.test_wakeups import next_hint

Insert = Callable[[], Any]
Begun = AbstractContextManager[tuple[Any, Insert]]


class Undo(Exception):
    """Raised to make a library roll back its transaction."""


@pytest.fixture
async def driver(tmp_path):
    async with driver_on(tmp_path / "jobs.db", "timeout=1&durability=normal") as driver:
        connection = sqlite3.connect(tmp_path / "jobs.db")
        connection.execute("create table orders (id text)")
        connection.close()
        yield driver
    assert is_sound(tmp_path / "jobs.db")


@contextmanager
def engine_on(path: Path, **options: Any) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}", **options)
    try:
        yield engine
    finally:
        engine.dispose()


INSERT = sqlalchemy.text("insert into orders values ('order-1')")


@contextmanager
def session(path: Path) -> Iterator[tuple[Any, Insert]]:
    with engine_on(path) as engine, Session(engine) as one, one.begin():
        yield one, lambda: one.execute(INSERT)


@contextmanager
def session_of_a_scope(path: Path) -> Iterator[tuple[Any, Insert]]:
    with engine_on(path) as engine:
        scoped = scoped_session(sessionmaker(engine))
        try:
            with scoped.begin():
                yield scoped, lambda: scoped.execute(INSERT)
        finally:
            scoped.remove()


@contextmanager
def connection_begun(path: Path) -> Iterator[tuple[Any, Insert]]:
    with engine_on(path) as engine, engine.begin() as one:
        yield one, lambda: one.execute(INSERT)


@contextmanager
def connection_as_you_go(path: Path) -> Iterator[tuple[Any, Insert]]:
    """No begin was sent: the first statement begins."""
    with engine_on(path) as engine, engine.connect() as one:
        yield one, lambda: one.execute(INSERT)
        one.commit()


@contextmanager
def connection_that_begins_by_itself(path: Path) -> Iterator[tuple[Any, Insert]]:
    """The recipe of SQLAlchemy's manual for real transactions on SQLite."""
    with engine_on(path) as engine:

        @sqlalchemy.event.listens_for(engine, "connect")
        def _no_help(raw: Any, _: Any) -> None:
            raw.isolation_level = None

        @sqlalchemy.event.listens_for(engine, "begin")
        def _begin(connection: Any) -> None:
            connection.exec_driver_sql("BEGIN")

        with engine.begin() as one:
            yield one, lambda: one.execute(INSERT)


LIBRARIES: list[Callable[[Path], Begun]] = [
    session,
    session_of_a_scope,
    connection_begun,
    connection_as_you_go,
    connection_that_begins_by_itself,
]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)
@pytest.mark.parametrize("is_first", [True, False], ids=["job first", "write first"])
async def test_the_job_follows_the_transaction(
    driver: SqliteDriver, tmp_path: Path, library: Callable[[Path], Begun], is_first: bool
) -> None:
    kept, undone = new_job(), new_job()
    with pytest.raises(Undo), library(tmp_path / "jobs.db") as (tx, insert):
        if not is_first:
            insert()
        driver.enqueue_blocking([undone], tx=tx)
        if is_first:
            insert()
        raise Undo
    with library(tmp_path / "jobs.db") as (tx, insert):
        if not is_first:
            insert()
        [answer] = driver.enqueue_blocking([kept], tx=tx)
        if is_first:
            insert()
        assert await driver.get([kept.id]) == [None], "not before the commit"

    assert answer.result == "created"
    assert [job.id for job in (await driver.reserve(claim(5))).jobs] == [kept.id]
    connection = sqlite3.connect(tmp_path / "jobs.db")
    assert connection.execute("select count(*) from orders").fetchone() == (1,)
    connection.close()


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)
async def test_a_transaction_reads_the_job_that_it_has_stored(
    driver: SqliteDriver, tmp_path: Path, library: Callable[[Path], Begun]
) -> None:
    kept, undone = new_job(), new_job()
    unopened = driver.another()
    with pytest.raises(Undo), library(tmp_path / "jobs.db") as (tx, _):
        unopened.enqueue_on(tx, [undone])
        raise Undo
    with library(tmp_path / "jobs.db") as (tx, _):
        unopened.enqueue_on(tx, [kept])
        seen = unopened.get_on(tx, [kept.id, undone.id])
        assert await driver.get([kept.id]) == [None], "not before the commit"

    assert seen == await driver.get([kept.id, undone.id])
    assert (seen[1], unopened.is_open) == (None, False)


@pytest.mark.parametrize("makes_session", [True, False], ids=["session", "connection"])
async def test_with_autocommit_a_job_is_stored_at_once(
    driver: SqliteDriver, tmp_path: Path, makes_session: bool
) -> None:
    unopened = driver.another()
    with (
        engine_on(tmp_path / "jobs.db", isolation_level="AUTOCOMMIT") as engine,
        Session(engine) if makes_session else engine.connect() as connection,
    ):
        [answer] = unopened.enqueue_on(connection, [new_job()])
        [seen] = unopened.get_on(connection, [answer.id])
        connection.rollback()

    assert [seen] == await driver.get([answer.id])


@pytest.mark.parametrize("makes_session", [True, False], ids=["session", "connection"])
async def test_autocommit_is_no_transaction(
    driver: SqliteDriver, tmp_path: Path, makes_session: bool
) -> None:
    with (
        engine_on(tmp_path / "jobs.db", isolation_level="AUTOCOMMIT") as engine,
        Session(engine) if makes_session else engine.connect() as tx,
        pytest.raises(InvalidArgument, match="AUTOCOMMIT"),
    ):
        driver.enqueue_blocking([new_job()], tx=tx)

    assert await driver.count() == {}


DJANGO = """
import asyncio, sys
import django
from django.conf import settings
from django.db import connection, transaction

path = sys.argv[1]
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": path}})
django.setup()

from taskharbor.errors import InvalidArgument
from taskharbor.harbor import Harbor

harbor = Harbor(f"sqlite:///{path}")
unopened = Harbor(f"sqlite:///{path}")

@harbor.task
def work(name: str) -> None: ...

for tx in ("default", connection):
    for name in ("kept", "undone"):
        try:
            with transaction.atomic():
                work.using(tx=tx).enqueue(name)
                connection.cursor().execute("insert into orders values (%s)", [name])
                if name == "undone":
                    raise LookupError
        except LookupError:
            pass
    try:
        work.using(tx=tx).enqueue("alone")
    except InvalidArgument as error:
        print(error)
    [handle] = unopened.enqueue_on(tx, [work.call("kept")])
    with transaction.atomic():
        [later] = unopened.enqueue_on(tx, [work.call("kept")])
        assert [job.type for job in unopened.get_on(tx, [handle.id, later.id])] == ["work", "work"]
        assert len(connection.run_on_commit) == 1, "workers are woken after the commit"
connection.close()
harbor.close()
"""


async def test_django_by_alias_and_by_connection(driver: SqliteDriver, tmp_path: Path) -> None:
    """In a process of its own: Django has its settings once a process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DJANGO, str(tmp_path / "jobs.db"), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()

    assert process.returncode == 0
    assert output.decode().count("no open transaction") == 2
    jobs = (await driver.reserve(claim(10))).jobs
    assert [b"kept" in job.payload for job in jobs] == [True] * 6


async def test_an_async_session_is_refused_by_name(driver: SqliteDriver) -> None:
    with pytest.raises(InvalidArgument, match="await aenqueue"):
        driver.enqueue_blocking([new_job()], tx=AsyncSession())


async def test_a_connection_to_another_file_is_refused(driver: SqliteDriver, tmp_path: Path) -> None:
    with session(tmp_path / "other.db") as (tx, _), pytest.raises(InvalidArgument, match="another file"):
        driver.enqueue_blocking([new_job()], tx=tx)


# ------------------------------------------------------------------ wake-ups and first use


async def test_a_job_of_a_transaction_wakes_a_worker(driver: SqliteDriver, tmp_path: Path) -> None:
    """The claim that the hint leads to waits for the commit: nobody has to poll for the job."""
    async with driver.another() as other:
        listener = other.wakeups(["default"], "worker-1")
        job = new_job()
        connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        connection.execute("begin immediate")
        driver.enqueue_blocking([job], tx=connection)

        hint = await next_hint(listener)
        connection.execute("commit")
        connection.close()

        assert hint == Wakeup(WakeupKind.WORK, queue="default")
        assert [taken.id for taken in (await other.reserve(claim(1))).jobs] == [job.id]


async def test_a_session_wakes_a_worker_after_its_commit(driver: SqliteDriver, tmp_path: Path) -> None:
    """Not for what was undone: a transaction, a session that was closed, a savepoint."""
    async with driver.another() as other:
        listener = other.wakeups(["kept", "undone"], "worker-1")
        with engine_on(tmp_path / "jobs.db") as engine, Session(engine) as session:
            driver.enqueue_blocking([new_job(queue="undone")], tx=session)
            session.rollback()
            driver.enqueue_blocking([new_job(queue="undone")], tx=session)
            session.close()
            with session.begin():
                with pytest.raises(Undo), session.begin_nested():
                    driver.enqueue_blocking([new_job(queue="undone")], tx=session)
                    raise Undo
                with session.begin_nested():
                    driver.enqueue_blocking([new_job(queue="kept")], tx=session)

        # A hint for the other queue would have come before.
        assert await next_hint(listener) == Wakeup(WakeupKind.WORK, queue="kept")
        assert list(await driver.count()) == ["kept"]


@pytest.mark.parametrize("is_async", [False, True], ids=["enqueue", "aenqueue"])
async def test_a_store_that_is_not_made_yet_is_named_to_a_caller_with_an_open_transaction(
    tmp_path: Path, is_async: bool
) -> None:
    harbor = Harbor(f"sqlite:///{tmp_path / 'jobs.db'}?timeout=60")

    @harbor.task
    def work() -> None: ...

    connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, check_same_thread=False)
    connection.execute("begin immediate")
    connection.execute("create table orders (id text)")
    joined = work.using(tx=connection)

    with pytest.raises(InvalidArgument, match=r"harbor\.open\(\)"):
        await joined.aenqueue() if is_async else await asyncio.to_thread(joined.enqueue)
    connection.execute("commit")
    await harbor.aopen()
    connection.execute("begin immediate")
    handle = await joined.aenqueue()
    connection.execute("commit")
    connection.close()

    assert (await harbor.client.aget(handle.id)).id == handle.id
    await harbor.aclose()
