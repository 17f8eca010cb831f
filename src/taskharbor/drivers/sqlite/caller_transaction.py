"""Steps inside a transaction of the caller's own: of a sqlite3 connection, or of what has one inside.

SQLAlchemy leaves it to sqlite3 to begin a transaction, which that does before the first write. So where
none is open yet it is begun here, and ends with the commit or rollback of the session as any other.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from taskharbor.drivers.borrowed import (
    DJANGO,
    SQLALCHEMY,
    SQLALCHEMY_ASYNC,
    connection_of,
    django_connection,
    kind_of,
    no_transaction,
    refuse_autocommit,
)
from taskharbor.drivers.sqlite.faults import translated
from taskharbor.drivers.sqlite.location import Location
from taskharbor.drivers.sqlite.step import HandleCache, Statements, Step
from taskharbor.drivers.sqlite.wakeups import Notices
from taskharbor.errors import InvalidArgument

T = TypeVar("T")


def do_in(
    tx: Any, work: Callable[[Step], T], location: Location, sql: Statements, now: datetime
) -> tuple[T, Notices]:
    """Carry out a step in the caller's transaction: all of it or nothing, and the caller commits.

    The answer, and who is notified. That may be before the commit: until then the caller keeps every other
    writer waiting, so a worker that looks for the job has its turn right after it.
    """
    own = sqlite_of(tx, location)
    factories = own.row_factory, own.text_factory
    own.row_factory, own.text_factory = None, str
    try:
        _check(own, location)
        with translated(location.path):
            return _in_savepoint(own, work, sql, now)
    finally:
        own.row_factory, own.text_factory = factories


def sqlite_of(tx: Any, location: Location) -> sqlite3.Connection:
    """The sqlite3 connection inside of what the caller gave."""
    if isinstance(tx, sqlite3.Connection):
        return tx
    kind = kind_of(tx, {*SQLALCHEMY, *SQLALCHEMY_ASYNC, *DJANGO})
    if kind in SQLALCHEMY:
        return _of_sqlalchemy(connection_of(tx), location)
    if kind in DJANGO or isinstance(tx, str):
        return _of_django(django_connection(tx) if isinstance(tx, str) else tx, location)
    if kind in SQLALCHEMY_ASYNC:
        raise no_transaction(f"tx is async, and {location.path} is joined by blocking calls: use a Session")
    raise InvalidArgument(
        f"tx must be a sqlite3.Connection on {location.path}, or one of SQLAlchemy or Django, "
        f"not {type(tx).__name__}"
    )


def _of_sqlalchemy(connection: Any, location: Location) -> sqlite3.Connection:
    own = connection.connection.driver_connection
    if not isinstance(own, sqlite3.Connection):
        raise InvalidArgument(
            f"tx is a connection to {connection.dialect.name}; the jobs are in {location.path}"
        )
    refuse_autocommit(connection)
    if not connection.in_transaction():
        connection.begin()  # as its first statement would
    if not own.in_transaction:
        if own.isolation_level is None:
            raise no_transaction("tx has the isolation level AUTOCOMMIT: use one that begins transactions")
        with translated(location.path):
            own.execute("begin immediate")
    return own


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
        answer = work(step)
        step.finish()
    except BaseException:
        if tx.in_transaction:
            tx.execute("rollback to taskharbor")
            tx.execute("release taskharbor")
        raise
    tx.execute("release taskharbor")
    return answer, step.notices


def _check(tx: sqlite3.Connection, location: Location) -> None:
    if not _is_same_file(tx, location.path):
        raise InvalidArgument(f"tx is connected to another file than {location.path}; enqueue without tx")
    if not tx.in_transaction:
        raise InvalidArgument(
            "tx has no open transaction, so there is nothing to join: execute BEGIN first, "
            "best BEGIN IMMEDIATE, and commit after the enqueue"
        )


def _is_same_file(tx: sqlite3.Connection, path: str) -> bool:
    try:
        files = [row[2] for row in tx.execute("pragma database_list") if row[1] == "main"]
        return bool(files and files[0]) and os.path.samefile(files[0], path)
    except (OSError, sqlite3.Error):
        return False
