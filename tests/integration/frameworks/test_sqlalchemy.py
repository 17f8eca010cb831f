"""Jobs in the transactions of SQLAlchemy, on every dialect that a store of ours can share, and after them."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from taskharbor import Harbor
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.drivers.messages import Wakeup, WakeupKind
from taskharbor.errors import DriverUnavailable, InvalidArgument
from taskharbor.integrations.sqlalchemy import enqueue_after_commit
from taskharbor.model.job import NewJob
from taskharbor.testing.conformance.kit import new_job
from taskharbor.testing.servers import fresh_postgres_url, postgres_url

DIALECTS = [
    "postgresql+psycopg",
    "postgresql+psycopg2",
    "postgresql+asyncpg",
    "sqlite+pysqlite",
    "sqlite+aiosqlite",
]
ASYNC = ("asyncpg", "aiosqlite")


@asynccontextmanager
async def async_engine(url: str, **settings: Any) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url, **settings)
    yield engine
    await engine.dispose()


class Site(NamedTuple):
    """A database with a store in it, and the URL by which SQLAlchemy finds it."""

    store: str
    url: str

    @property
    def is_async(self) -> bool:
        return any(name in self.url for name in ASYNC)

    @asynccontextmanager
    async def session(self, isolation_level: Any = None, **options: Any) -> AsyncIterator[Any]:
        settings = {"poolclass": NullPool}
        if isolation_level is not None:
            settings["isolation_level"] = isolation_level
        if self.is_async:
            async with (
                async_engine(self.url, **settings) as engine,
                AsyncSession(engine, **options) as session,
            ):
                yield session
        else:
            with Session(create_engine(self.url, **settings), **options) as session:
                yield session


@pytest.fixture(scope="module")
def postgres_store() -> str:
    return fresh_postgres_url()


@pytest.fixture(params=DIALECTS)
def site(request: pytest.FixtureRequest, tmp_path: Any) -> Site:
    if request.param.startswith("sqlite"):
        store = f"sqlite:///{tmp_path}/jobs.db?durability=normal"
        return Site(store, f"{request.param}:///{tmp_path}/jobs.db")
    store = request.getfixturevalue("postgres_store")
    return Site(store, postgres_url().replace("postgresql", request.param, 1))


@pytest.fixture
async def driver(site: Site) -> AsyncIterator[Driver]:
    async with connect(site.store) as driver:
        yield driver


async def done(result: Any) -> Any:
    """What a blocking session has answered, or an async one will."""
    return await result if inspect.isawaitable(result) else result


async def enqueue(driver: Driver, job: NewJob, session: Any) -> None:
    if isinstance(session, AsyncSession):
        with pytest.raises(InvalidArgument, match="await aenqueue"):
            driver.enqueue_blocking([job], tx=session)
        await driver.enqueue_in([job], tx=session)
    else:
        driver.enqueue_blocking([job], tx=session)


async def are_there(driver: Driver, *jobs: NewJob) -> list[bool]:
    return [found is not None for found in await driver.get([job.id for job in jobs])]


# ------------------------------------------------------------------ in the transaction


async def test_a_job_is_committed_and_rolled_back_with_the_session(site: Site, driver: Driver) -> None:
    """Also when the job is the first thing that the session does."""
    kept, undone, closed = new_job(), new_job(), new_job()
    async with site.session() as session:
        await enqueue(driver, undone, session)
        await done(session.rollback())
        await done(session.execute(text("select 1")))
        await enqueue(driver, kept, session)
        before = await are_there(driver, kept)
        await done(session.commit())
        await enqueue(driver, closed, session)

    assert before == [False]
    assert await are_there(driver, kept, undone, closed) == [True, False, False]


async def test_a_job_goes_with_its_savepoint(site: Site, driver: Driver) -> None:
    kept, undone, last = new_job(), new_job(), new_job()
    async with site.session() as session:
        await done(session.begin())
        undoing = await done(session.begin_nested())
        await enqueue(driver, undone, session)
        await done(undoing.rollback())
        keeping = await done(session.begin_nested())
        await enqueue(driver, kept, session)
        await done(keeping.commit())
        await enqueue(driver, last, session)
        await done(session.commit())

    assert await are_there(driver, kept, undone, last) == [True, False, True]


async def test_autocommit_is_refused(site: Site, driver: Driver) -> None:
    job = new_job()
    async with site.session(isolation_level="AUTOCOMMIT") as session:
        with pytest.raises(InvalidArgument, match="AUTOCOMMIT"):
            await enqueue(driver, job, session)
        await done(session.rollback())

    assert await are_there(driver, job) == [False]


async def test_two_phases_are_refused(site: Site, driver: Driver) -> None:
    """Before anything is begun, and the session can go on."""
    job = new_job()
    async with site.session(twophase=True) as session:
        with pytest.raises(InvalidArgument, match="two-phase"):
            await enqueue(driver, job, session)
        await done(session.rollback())

    assert await are_there(driver, job) == [False]


@pytest.mark.parametrize("site", ["postgresql+psycopg2"], indirect=True)
async def test_a_connection_in_two_phases_is_refused(site: Site, driver: Driver) -> None:
    with (
        create_engine(site.url, poolclass=NullPool).connect() as connection,
        connection.begin_twophase(),
        pytest.raises(InvalidArgument, match="two-phase"),
    ):
        driver.enqueue_blocking([new_job()], tx=connection)


@pytest.mark.parametrize("site", ["sqlite+aiosqlite"], indirect=True)
async def test_an_async_session_wakes_a_worker_after_its_commit(site: Site, driver: Driver) -> None:
    listener = driver.wakeups(("undone", "kept"), "worker-1")
    async with site.session() as session:
        await driver.enqueue_in([new_job(queue="undone")], tx=session)
        await session.rollback()
        await driver.enqueue_in([new_job(queue="kept")], tx=session)
        await session.commit()
        async with asyncio.timeout(30):  # a hint for the other queue would have come before
            hint = await anext(listener)
    await listener.aclose()

    assert hint == Wakeup(WakeupKind.WORK, queue="kept")


@pytest.mark.parametrize("site", ["sqlite+aiosqlite"], indirect=True)
async def test_a_task_joins_an_async_connection(site: Site, driver: Driver) -> None:
    async with (
        Harbor(site.store) as harbor,
        async_engine(site.url) as engine,
        engine.connect() as connection,
    ):

        @harbor.task
        def work(number: int) -> None: ...

        handle = await work.using(tx=connection).aenqueue(7)
        assert await driver.get([handle.id]) == [None]
        await connection.commit()

        assert [job and job.type for job in await driver.get([handle.id])] == ["work"]


@pytest.mark.parametrize("site", ["sqlite+aiosqlite", "postgresql+asyncpg"], indirect=True)
async def test_a_session_of_another_store_is_refused(site: Site, tmp_path: Any) -> None:
    async with connect(f"sqlite:///{tmp_path}/other.db") as driver, site.session() as session:
        with pytest.raises(InvalidArgument, match=r"another file|connection to postgresql"):
            await driver.enqueue_in([new_job()], tx=session)
        await session.rollback()


# ------------------------------------------------------------------ after the commit

harbor = Harbor("memory://after-commit")


@harbor.task
def send(name: str) -> None: ...


@contextmanager
def blocking_session(**options: Any) -> Iterator[Session]:
    engine = create_engine("sqlite://")
    with Session(engine, **options) as session:
        yield session
    engine.dispose()


def test_jobs_follow_the_commit_and_nothing_else() -> None:
    assert _sent_by(lambda session: session.commit()) == 1
    assert _sent_by(lambda session: session.rollback()) == 0
    assert _sent_by(lambda session: session.close()) == 0
    assert _sent_by(lambda session: (session.rollback(), session.commit(), session.commit())) == 0
    assert _sent_by(lambda session: (session.commit(), session.commit())) == 1
    assert (
        _sent_by(lambda session: (session.close(), session.execute(text("select 1")), session.commit())) == 0
    )


def _sent_by(end: Any) -> int:
    before = _count()
    with blocking_session() as session:
        enqueue_after_commit(session, harbor, send.call("a"))
        assert _count() == before, "not before the commit"
        end(session)
    return _count() - before


def _count() -> int:
    return harbor.queue("default").counts().total


def test_jobs_of_a_savepoint_go_with_it() -> None:
    before = _count()
    with blocking_session() as session:
        with session.begin_nested():
            enqueue_after_commit(session, harbor, send.call("kept"))
            with session.begin_nested() as inner:
                enqueue_after_commit(session, harbor, send.call("undone"))
                inner.rollback()
        assert _count() == before, "a savepoint is no commit"
        with session.begin_nested() as outer:
            with session.begin_nested():
                enqueue_after_commit(session, harbor.client, send.call("undone with the outer one"))
            outer.rollback()
        session.commit()

    assert _count() == before + 1


def test_a_scope_and_several_jobs() -> None:
    before = _count()
    engine = create_engine("sqlite://")
    scope = scoped_session(sessionmaker(engine))
    enqueue_after_commit(scope, harbor, send.call("a"), send.call("b"))
    scope.commit()
    scope.remove()
    engine.dispose()

    assert _count() == before + 2


async def test_an_async_session_enqueues_after_its_commit_too() -> None:
    async with (
        Harbor("memory://") as own,
        async_engine("sqlite+aiosqlite://") as engine,
        AsyncSession(engine) as session,
    ):

        @own.task
        def work() -> None: ...

        enqueue_after_commit(session, own, work.call())
        await session.rollback()
        enqueue_after_commit(session, own, work.call())
        await session.run_sync(lambda inner: enqueue_after_commit(inner, own, work.call()))
        await session.commit()

        assert (await own.queue("default").acounts()).ready == 2


def test_a_store_that_fails_after_the_commit_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The rows are committed, and the session is as after any commit."""
    own = Harbor("redis://127.0.0.1:1/0")

    @own.task
    def work() -> None: ...

    with blocking_session() as session, caplog.at_level(logging.ERROR):
        session.execute(text("create table orders (number integer)"))
        enqueue_after_commit(session, own, work.call())
        session.commit()
        assert not session.in_transaction()
        session.execute(text("select * from orders"))

    [record] = [one for one in caplog.records if one.name == "taskharbor.integrations.sqlalchemy"]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], DriverUnavailable)
    assert "1 job not enqueued after the commit, of task work" in record.message


async def test_what_can_never_be_enqueued_is_refused_at_once() -> None:
    with pytest.raises(InvalidArgument, match="a session of SQLAlchemy is needed"):
        enqueue_after_commit(object(), harbor, send.call("a"))
    with blocking_session() as session, pytest.raises(InvalidArgument, match="AsyncSession"):
        enqueue_after_commit(session, harbor, send.call("a"))
