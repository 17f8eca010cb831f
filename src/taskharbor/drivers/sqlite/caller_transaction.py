"""Steps on a connection of the caller's own: a sqlite3 connection, or what has one inside.

SQLAlchemy leaves it to sqlite3 to begin a transaction, which that does before the first write. So where
none is open yet it is begun here, and ends with the commit or rollback of the session as any other.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar, cast

from taskharbor.drivers.borrowed import (
    DJANGO,
    SQLALCHEMY,
    SQLALCHEMY_ASYNC,
    connection_of,
    django_connection,
    is_autocommit,
    kind_of,
    no_transaction,
    refuse_two_phase,
    when_committed,
)
from taskharbor.drivers.sqlite import schema
from taskharbor.drivers.sqlite.faults import translated
from taskharbor.drivers.sqlite.location import Location
from taskharbor.drivers.sqlite.step import HandleCache, Statements, Step
from taskharbor.drivers.sqlite.wakeups import Notices, ring_once
from taskharbor.errors import InvalidArgument

T = TypeVar("T")

_NO_TABLE = re.compile("no such (table|column)|has no column named")


def do_in(tx: Any, work: Callable[[Step], T], location: Location, sql: Statements, now: datetime) -> T:
    """Carry out a step in the caller's transaction: all of it or nothing, and the caller commits."""
    own = sqlite_of(tx, location)
    if kind_of(tx, SQLALCHEMY):
        _join(connection_of(tx), own, location)
    answer, notices = do_quietly_in(own, work, location, sql, now)
    _ring(tx, location, notices)
    return answer


async def do_in_async(
    tx: Any, work: Callable[[Step], T], location: Location, sql: Statements, now: datetime
) -> T:
    """The same for an async session or connection of SQLAlchemy, on aiosqlite."""
    refuse_two_phase(tx)
    connection = connection_of(tx)

    def join(inner: Any) -> tuple[T, Notices]:
        own = Adapted.of(inner, location)
        _join(inner, own, location)
        return do_quietly_in(own, work, location, sql, now)

    answer, notices = await (connection if connection is tx else await connection).run_sync(join)
    _ring(tx, location, notices)
    return cast(T, answer)


def do_quietly_in(
    own: sqlite3.Connection,
    work: Callable[[Step], T],
    location: Location,
    sql: Statements,
    now: datetime,
) -> tuple[T, Notices]:
    """The same on a sqlite3 connection. Workers are left to the caller, who knows when it commits."""
    with _borrowed(own, location):
        if not own.in_transaction:
            raise InvalidArgument(
                "tx has no open transaction, so there is nothing to join: execute BEGIN first, "
                "best BEGIN IMMEDIATE, and commit after the enqueue"
            )
        return _in_savepoint(own, work, sql, now)


def do_on(
    connection: Any, work: Callable[[Step], T], location: Location, sql: Statements, now: datetime
) -> T:
    """`do_in`, and without a transaction there in one of its own, which is committed."""
    own = sqlite_of(connection, location)
    if kind_of(connection, SQLALCHEMY):
        _begun(connection_of(connection), own, location)
    with _borrowed(own, location):
        is_alone = not own.in_transaction
        if is_alone:
            answer, notices = _alone(own, work, sql, now)
        else:
            answer, notices = _in_savepoint(own, work, sql, now)
    _ring(None if is_alone else connection, location, notices)
    return answer


def look_on(
    connection: Any, look: Callable[[Step], T], location: Location, sql: Statements, now: datetime
) -> T:
    """A step that changes nothing: it sees what the transaction there has written."""
    own = sqlite_of(connection, location)
    with _borrowed(own, location):
        step = Step(own, sql, HandleCache(), now, Notices())
        if own.in_transaction:
            return look(step)
        own.execute("begin")
        try:
            return look(step)
        finally:
            own.execute("rollback")


def _ring(tx: Any, location: Location, notices: Notices) -> None:
    """Wake workers after the commit. Where we do not learn of it, now: until then the caller keeps every
    other writer waiting, so a worker that looks for the job has its turn soon after.
    """
    if notices and not when_committed(tx, lambda: ring_once(location, notices)):
        ring_once(location, notices)


@contextmanager
def _borrowed(own: sqlite3.Connection, location: Location) -> Iterator[None]:
    """Rows and texts as we read them, and errors of ours; afterwards everything is as the caller had it."""
    factories = own.row_factory, own.text_factory
    own.row_factory, own.text_factory = None, str
    try:
        if not _is_same_file(own, location.path):
            raise InvalidArgument(
                f"the connection is to another file than {location.path}, where the jobs are; "
                "nothing was stored"
            )
        with translated(location.path):
            try:
                yield
            except sqlite3.OperationalError as error:
                if _NO_TABLE.search(str(error)):
                    raise schema.out_of_date(own, location) from error
                raise
    finally:
        own.row_factory, own.text_factory = factories


def sqlite_of(tx: Any, location: Location) -> sqlite3.Connection:
    """The sqlite3 connection inside of what the caller gave."""
    if isinstance(tx, sqlite3.Connection):
        return tx
    kind = kind_of(tx, {*SQLALCHEMY, *SQLALCHEMY_ASYNC, *DJANGO})
    if kind in SQLALCHEMY:
        refuse_two_phase(tx)
        return _of_sqlalchemy(connection_of(tx), location)
    if kind in DJANGO or isinstance(tx, str):
        return _of_django(django_connection(tx) if isinstance(tx, str) else tx, location)
    if kind in SQLALCHEMY_ASYNC:
        raise no_transaction("tx is an async connection: use `await aenqueue()`")
    raise InvalidArgument(
        f"tx must be a sqlite3.Connection on {location.path}, or one of SQLAlchemy or Django, "
        f"not {type(tx).__name__}"
    )


def is_async(tx: Any) -> bool:
    """Whether to join it with `do_in_async`."""
    return kind_of(tx, SQLALCHEMY_ASYNC) is not None


def _of_sqlalchemy(connection: Any, location: Location) -> sqlite3.Connection:
    own = connection.connection.driver_connection
    if not isinstance(own, sqlite3.Connection):
        raise _of_another_store(connection, location)
    return own


def _of_another_store(connection: Any, location: Location) -> InvalidArgument:
    return InvalidArgument(
        f"tx is a connection to {connection.dialect.name}; the jobs are in {location.path}"
    )


def _join(connection: Any, own: sqlite3.Connection, location: Location) -> None:
    if not _begun(connection, own, location):
        raise no_transaction("tx has the isolation level AUTOCOMMIT: use one that begins transactions")


def _begun(connection: Any, own: sqlite3.Connection, location: Location) -> bool:
    """Begin the transaction of a SQLAlchemy connection, unless it is. False: AUTOCOMMIT has none."""
    if is_autocommit(connection):
        return False
    if not connection.in_transaction():
        connection.begin()  # as its first statement would
    if not own.in_transaction:
        if own.isolation_level is None:
            return False
        with translated(location.path):
            own.execute("begin immediate")
    return True


def _of_django(connection: Any, location: Location) -> sqlite3.Connection:
    if connection.vendor != "sqlite":
        raise InvalidArgument(
            f"tx is a Django connection to {connection.vendor}; the jobs are in {location.path}"
        )
    connection.ensure_connection()
    own: sqlite3.Connection = connection.connection
    return own


def _in_savepoint(
    tx: sqlite3.Connection, work: Callable[[Step], T], sql: Statements, now: datetime
) -> tuple[T, Notices]:
    step = Step(tx, sql, HandleCache(), now, Notices())
    tx.execute("savepoint taskharbor")
    try:
        step.begin()
        answer = work(step)
        step.finish()
    except BaseException:
        if tx.in_transaction:
            tx.execute("rollback to taskharbor")
            tx.execute("release taskharbor")
        raise
    tx.execute("release taskharbor")
    return answer, step.notices


def _alone(
    own: sqlite3.Connection, work: Callable[[Step], T], sql: Statements, now: datetime
) -> tuple[T, Notices]:
    step = Step(own, sql, HandleCache(), now, Notices())
    own.execute("begin immediate")
    try:
        step.begin()
        answer = work(step)
        step.finish()
        own.execute("commit")
    except BaseException:
        if own.in_transaction:
            own.execute("rollback")
        raise
    return answer, step.notices


def _is_same_file(tx: sqlite3.Connection, path: str) -> bool:
    try:
        files = [row[2] for row in tx.execute("pragma database_list") if row[1] == "main"]
        return bool(files and files[0]) and os.path.samefile(files[0], path)
    except (OSError, sqlite3.Error):
        return False


class Adapted:
    """An aiosqlite connection as SQLAlchemy adapts it, with what a step needs of sqlite3.Connection.

    For use inside of `run_sync`, where each call waits for the thread of aiosqlite and keeps the loop free.
    """

    def __init__(self, adapted: Any) -> None:
        self._adapted = adapted
        self._own = adapted.driver_connection

    @classmethod
    def of(cls, connection: Any, location: Location) -> sqlite3.Connection:
        if connection.dialect.driver != "aiosqlite":
            raise _of_another_store(connection, location)
        return cast(sqlite3.Connection, cls(connection.connection.dbapi_connection))

    def execute(self, statement: str, values: Any = ()) -> Any:
        cursor = self._adapted.cursor()
        cursor.execute(statement, values)
        return cursor

    @property
    def in_transaction(self) -> bool:
        return bool(self._own.in_transaction)

    @property
    def isolation_level(self) -> str | None:
        level: str | None = self._own.isolation_level
        return level

    @property
    def row_factory(self) -> Any:
        return self._own.row_factory

    @row_factory.setter
    def row_factory(self, factory: Any) -> None:
        self._own.row_factory = factory

    @property
    def text_factory(self) -> Any:
        return self._own.text_factory

    @text_factory.setter
    def text_factory(self, factory: Any) -> None:
        self._own.text_factory = factory
