"""What SQLite says → our errors. The only place that looks at its codes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from taskharbor.errors import (
    DriverClosed,
    DriverError,
    DriverMisbehaved,
    DriverUnavailable,
    StoreFull,
    StoreRefused,
)

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_REFUSED = frozenset(
    {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
)
_BROKEN = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT})
_FOR_NOW = frozenset(
    {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL}
)


@contextmanager
def translated(path: str, *, committing: bool = False) -> Iterator[None]:
    """Let our errors out instead of SQLite's."""
    try:
        yield
    except sqlite3.Error as error:
        raise translation(error, path, committing=committing) from error


def translation(error: sqlite3.Error, path: str, *, committing: bool = False) -> DriverError:
    """Our word for what went wrong. `committing`: the step may have been written all the same."""
    code = primary_code(error)
    if code in _BUSY:
        return DriverUnavailable(f"{path} is locked by another writer; nothing was written, try again")
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(f"no room is left for {path}; nothing was written, free some and try again")
    if code in _REFUSED:
        return StoreRefused(
            f"{path} cannot be opened and written here ({error}); check the rights of file and folder"
        )
    if code in _BROKEN:
        return StoreRefused(f"{path} is not a SQLite database, or it is damaged ({error})")
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error).lower():
        return DriverClosed()
    if code in _FOR_NOW or (code is None and isinstance(error, sqlite3.OperationalError)):
        done = None if committing and code == sqlite3.SQLITE_IOERR else False
        return DriverUnavailable(f"{path} failed for now ({error}); try again", done=done)
    return DriverMisbehaved(f"SQLite failed unexpectedly on {path}: {error}")


def primary_code(error: sqlite3.Error) -> int | None:
    """The code without its details; None when SQLite gave none."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    return primary_code(error) in _BUSY
