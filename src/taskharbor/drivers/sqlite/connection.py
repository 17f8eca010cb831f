"""Connections to the file, and how they are set up."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable

from taskharbor.drivers.sqlite.faults import translated
from taskharbor.drivers.sqlite.location import Location
from taskharbor.drivers.sqlite.writer import KEPT_LOG, LONG_LOG, when_free
from taskharbor.errors import StoreRefused
from taskharbor.model.entropy import Entropy

OLDEST = (3, 40)


def open_writer(location: Location, entropy: Entropy) -> sqlite3.Connection:
    """A connection that may write, in WAL mode, as durable as the location says.

    While it is set up and migrated, SQLite itself waits for others; from `ready` on, `begin` does.
    """
    _check_library()
    _make(location.path)
    with translated(location.path):
        connection = _open(location, f"file:{_quoted(location.path)}?mode=rwc")
    try:
        with translated(location.path):
            _set_up_writer(connection, location, entropy)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(location: Location) -> sqlite3.Connection:
    """A connection that only looks. In WAL mode it never waits for a writer."""
    with translated(location.path):
        connection = _open(location, f"file:{_quoted(location.path)}?mode=rw")
    try:
        with translated(location.path):
            connection.execute("pragma query_only = on")
            connection.execute("pragma cache_size = -8000")
    except BaseException:
        connection.close()
        raise
    return connection


def open_looker(
    location: Location, check: Callable[[sqlite3.Connection, Location], None] | None
) -> sqlite3.Connection:
    """A connection that leaves no trace in the file; with `check`, only on a store that passes it.

    The last connection to close a file in WAL mode brings its log into it, unless it may only read. One
    that may only read cannot remove the empty log that it needs to look at a file without one.
    """
    has_log = os.path.exists(log := f"{location.path}-wal") and os.path.getsize(log) > 0
    if check is None and not os.path.exists(location.path):
        return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with translated(location.path):
        connection = _open(location, f"file:{_quoted(location.path)}?mode={'ro' if has_log else 'rw'}")
    try:
        with translated(location.path):
            connection.execute("pragma query_only = on")
            connection.execute("select 1 from sqlite_master").fetchone()
            if check is not None:
                check(connection, location)
    except BaseException:
        connection.close()
        raise
    return connection


def ready(connection: sqlite3.Connection) -> None:
    """From now on `begin` waits for other writers, and nothing else has to."""
    connection.execute("pragma busy_timeout = 0")


def _make(path: str) -> None:
    """A new file is its owner's alone: payloads are private. Its log and index get its rights."""
    with contextlib.suppress(OSError):  # it is there, or opening it says why it cannot be made
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _open(location: Location, uri: str) -> sqlite3.Connection:
    folder = os.path.dirname(location.path)
    if not os.path.isdir(folder):
        raise StoreRefused(f"there is no folder {folder}; create it, then open {location.path} again")
    # The writer's connection passes from thread to thread under a lock: see writer.py.
    return sqlite3.connect(
        uri,
        uri=True,
        timeout=location.timeout_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )


def _set_up_writer(connection: sqlite3.Connection, location: Location, entropy: Entropy) -> None:
    mode = when_free(connection, "pragma journal_mode = wal", location, entropy)
    if mode != ("wal",):
        raise StoreRefused(
            f"{location.path} cannot be used with a write-ahead log (it is in mode {mode}); "
            "network file systems and read-only places do not allow it"
        )
    connection.execute(f"pragma synchronous = {location.durability}")
    connection.execute("pragma secure_delete = off")  # deleted jobs need no overwriting with zeros
    connection.execute("pragma temp_store = memory")
    connection.execute("pragma cache_size = -32000")
    connection.execute(f"pragma journal_size_limit = {KEPT_LOG}")
    connection.execute(f"pragma wal_autocheckpoint = {LONG_LOG[location.durability]}")


def _check_library() -> None:
    if sqlite3.sqlite_version_info < OLDEST:
        raise StoreRefused(
            f"SQLite {sqlite3.sqlite_version} is too old; {'.'.join(map(str, OLDEST))} is needed"
        )


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
