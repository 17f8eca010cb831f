"""Connections to the file: how they are set up, how a writer gets its turn, and how it saves room."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable

from taskharbor.drivers.sqlite.faults import is_busy, translated, translation
from taskharbor.drivers.sqlite.location import Location
from taskharbor.errors import StoreRefused
from taskharbor.model.entropy import Entropy

OLDEST = (3, 40)
_FIRST_WAIT = 0.001
_LONGEST_WAIT = 0.05

LITTLE = 64 * 1024 * 1024
"""Four times the usual log, in bytes."""
_LONG_LOG = 4000  # pages of 4 KiB between two checkpoints: fewer, larger write-backs
_SHORT_LOG = 64
_KEPT_LOG = 64 * 1024 * 1024  # of a log that had to grow
_NO_LIMIT = 0xFFFFFFFE


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


def begin(connection: sqlite3.Connection, location: Location, entropy: Entropy) -> None:
    """Become the writer, or raise DriverUnavailable when others kept the turn for the whole timeout.

    BEGIN IMMEDIATE, because a reader that becomes a writer half-way fails when another one wrote in
    between. The waiting is ours and not SQLite's: with chance in it, many processes share fairly.
    """
    try:
        _when_free(connection, "begin immediate", location, entropy)
    except sqlite3.Error as error:
        raise translation(error, location.path) from error


def _when_free(connection: sqlite3.Connection, sql: str, location: Location, entropy: Entropy) -> object:
    waited, wait = 0.0, _FIRST_WAIT
    while True:
        try:
            return connection.execute(sql).fetchone()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or waited >= location.timeout_seconds:
                raise
        pause = min(entropy.between(wait / 2, wait), location.timeout_seconds - waited)
        threading.Event().wait(pause)
        waited += pause
        wait = min(wait * 2, _LONGEST_WAIT)


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
    mode = _when_free(connection, "pragma journal_mode = wal", location, entropy)
    if mode != ("wal",):
        raise StoreRefused(
            f"{location.path} cannot be used with a write-ahead log (it is in mode {mode}); "
            "network file systems and read-only places do not allow it"
        )
    connection.execute(f"pragma synchronous = {location.durability}")
    connection.execute("pragma secure_delete = off")  # deleted jobs need no overwriting with zeros
    connection.execute("pragma temp_store = memory")
    connection.execute("pragma cache_size = -32000")
    connection.execute(f"pragma journal_size_limit = {_KEPT_LOG}")
    connection.execute(f"pragma wal_autocheckpoint = {_LONG_LOG}")


def _check_library() -> None:
    if sqlite3.sqlite_version_info < OLDEST:
        raise StoreRefused(
            f"SQLite {sqlite3.sqlite_version} is too old; {'.'.join(map(str, OLDEST))} is needed"
        )


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


class Room:
    """How much room the disk has for one writer. With little room it keeps a short log, and never more in it
    than the file can still take.

    Every commit goes into the write-ahead log first, and a checkpoint copies it into the file. So what is new
    is on the disk twice for a while. On a disk without room a long log is a trap: the checkpoint that would
    make it short finds no room for the file to grow. So while there is little room, checkpoints come early,
    a finished log is cut off, and no step may add more to the file than a checkpoint will find room for.
    """

    def __init__(self, connection: sqlite3.Connection, location: Location) -> None:
        self._connection = connection
        self._folder = os.path.dirname(location.path)
        self._log = f"{location.path}-wal"
        self._is_little = False
        self._has_run_out = False  # since the last checkpoint that went through

    def ran_out(self) -> None:
        """A step was refused for want of room, which the file system may not show: there are quotas."""
        self._has_run_out = True

    def look(self) -> None:
        """Before a step, and outside of any transaction: see what room there is. Never raises."""
        free = self._free()
        if free >= LITTLE and not self._has_run_out:
            if self._is_little:
                self._live(is_little=False)
            return
        with contextlib.suppress(sqlite3.Error):  # the step itself will say what is wrong
            if not self._is_little:
                self._live(is_little=True)
            if self._has_run_out or self._log_bytes() > _SHORT_LOG * 8192:
                self._has_run_out = not self._shorten_log()
                free = self._free()
            self._limit_file(free)

    def _live(self, *, is_little: bool) -> None:
        self._is_little = is_little
        execute = self._connection.execute
        execute(f"pragma wal_autocheckpoint = {_SHORT_LOG if is_little else _LONG_LOG}")
        execute(f"pragma journal_size_limit = {0 if is_little else _KEPT_LOG}")
        if not is_little:
            execute(f"pragma max_page_count = {_NO_LIMIT}")

    def _shorten_log(self) -> bool:
        """Bring the log into the file and cut it off; whether that went through."""
        is_busy, _, _ = self._connection.execute("pragma wal_checkpoint(truncate)").fetchone()
        return not is_busy

    def _limit_file(self, free: int) -> None:
        """A new page goes into the log and then into the file, so half of the room is for each."""
        if free >= LITTLE:
            return
        (pages,) = self._connection.execute("pragma page_count").fetchone()
        (page_bytes,) = self._connection.execute("pragma page_size").fetchone()
        self._connection.execute(f"pragma max_page_count = {pages + (free // 2) // page_bytes}")

    def _free(self) -> int:
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return LITTLE
        return disk.f_bavail * disk.f_frsize

    def _log_bytes(self) -> int:
        try:
            return os.stat(self._log).st_size
        except OSError:
            return 0
