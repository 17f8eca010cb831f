"""Errors of asyncpg and psycopg → errors of ours. Nobody above a driver sees a foreign one.

What a message says comes from the server's own words, never from the connection string.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import psycopg

from taskharbor.errors import (
    DriverError,
    DriverMisbehaved,
    DriverUnavailable,
    SchemaOutOfDate,
    StoreFull,
    StoreRefused,
)

FOREIGN = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what a connection says that dies in the middle of an answer
    psycopg.Error,
    OSError,
    TimeoutError,
)
"""Everything that the database libraries raise."""

RETRYABLE = frozenset({"40001", "40P01"})
"""Serialisation failure and deadlock: the server undid everything and says so."""


class Busy(DriverUnavailable):
    """Somebody else has what a transaction needs and must not wait for: it is undone, and begins again."""

    def __init__(self) -> None:
        super().__init__("other calls hold jobs that this one needs; nothing was written", done=False)


KNOWN_ID = "23505"
"""What an enqueue of jobs that were taken for new says when one is known."""

MIGRATE = "run `taskharbor migrate up`"

_REFUSED = {
    "28": "the server does not let us in",  # wrong password, no such role
    "3D": "there is no such database",
    "42501": "the role may not do this",
    "25006": "the server takes no writes: it is a standby or set read-only",
}
_FULL = frozenset({"53100", "53200"})  # disk, memory
_OLD_SCHEMA = frozenset({"3F000", "42P01", "42883", "42703"})
# The statement was given up before its end, or never began: nothing was written.
_UNDONE = frozenset({"57014", "55P03", "53300", "53400", "57P03", "40001", "40P01", "25P03", "25P04"})


@contextmanager
def translated(*, writes: bool = True) -> Iterator[None]:
    """Foreign errors raised inside come out as ours."""
    try:
        yield
    except FOREIGN as error:
        raise ours(error, writes=writes) from error


def ours(error: BaseException, *, writes: bool = True) -> DriverError | SchemaOutOfDate:
    """The error to raise instead. `writes`: whether a lost answer may have been a change."""
    code = sqlstate(error)
    if code is None:
        return _lost(error, writes)
    text = _text_of(error)
    for prefix, why in _REFUSED.items():
        if code.startswith(prefix):
            return StoreRefused(f"{why}: {text}")
    if code in _OLD_SCHEMA:
        return SchemaOutOfDate(f"the schema of this store does not fit this code ({text}); {MIGRATE}")
    if code in _FULL:
        return StoreFull(f"the server has no room left, nothing was written: {text}")
    if code in _UNDONE:
        return DriverUnavailable(f"the server gave the statement up, nothing was written: {text}", done=False)
    if code.startswith(("08", "57P")):
        return _lost(error, writes)
    return DriverMisbehaved(f"the server answered {code}: {text}")


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE code of a server error; None for an error of the connection."""
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)  # psycopg2 has the latter
    return code if isinstance(code, str) else None


def is_known_id(error: BaseException) -> bool:
    """Whether an enqueue of jobs that were taken for new met one that is known."""
    return sqlstate(error) == KNOWN_ID or (error.__cause__ is not None and is_known_id(error.__cause__))


def _lost(error: BaseException, writes: bool) -> DriverError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreRefused(f"the certificate of the server was not accepted: {error.verify_message}")
    if isinstance(error, ValueError):
        return DriverMisbehaved(f"an argument that cannot be sent to the server: {_text_of(error)}")
    if type(error) is ConnectionError and "SSL" in str(error):
        return StoreRefused("the server speaks no TLS, and sslmode asks for it")
    if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
        # It names the address, or the socket's file; no password is ever part of it.
        return DriverUnavailable(
            f"the server does not accept connections ({error}); nothing was written", done=False
        )
    if isinstance(error, socket.gaierror):
        return DriverUnavailable(
            f"the host name of the server is not known ({error.strerror}); nothing was written", done=False
        )
    what = f"the connection was lost ({type(error).__name__})"
    if isinstance(error, TimeoutError):
        what = "the server did not answer in time"
    if writes:
        return DriverUnavailable(f"{what}; the call may have been carried out", done=None)
    return DriverUnavailable(f"{what}; nothing was written", done=False)


def _text_of(error: BaseException) -> str:
    if isinstance(error, psycopg.Error):
        return error.diag.message_primary or type(error).__name__
    return str(error.args[0]) if error.args else type(error).__name__
