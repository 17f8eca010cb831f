"""One statement on a connection or session that belongs to the caller, whichever library it is of.

Known by what they are, without importing any of them: psycopg, psycopg2, asyncpg, SQLAlchemy, Django. A
blocking one answers at once, an async one with a coroutine. SQLAlchemy is always spoken to through
its own `execute`: its asyncpg adapter begins lazily, and a statement sent past it would be
outside of the transaction.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, TypeVar, cast
from zoneinfo import ZoneInfo

from taskharbor.drivers.borrowed import (
    DJANGO,
    SQLALCHEMY,
    SQLALCHEMY_ASYNC,
    connection_of,
    django_connection,
    kind_of,
    refuse_autocommit,
    refuse_two_phase,
)
from taskharbor.drivers.postgres.family_step import Asked
from taskharbor.drivers.postgres.faults import ours
from taskharbor.drivers.postgres.statements import numbered
from taskharbor.errors import InvalidArgument, TaskHarborError
from taskharbor.model.text import with_article

_T = TypeVar("_T")
Then = Callable[[Sequence[Any]], _T]


def is_async(tx: Any) -> bool:
    """Whether `run_in` on this connection must be awaited."""
    kind = kind_of(tx, _KNOWN)
    return kind is not None and inspect.iscoroutinefunction(_KNOWN[kind])


def run_in(tx: Any, statement: str, arguments: list[Any], then: Then[_T]) -> _T | Awaitable[_T]:
    """Run the statement in the caller's transaction and hand its rows to `then`."""
    return _run(tx, statement, arguments, then, joins=True)


def run_on(connection: Any, statement: str, arguments: list[Any], then: Then[_T]) -> _T:
    """Run the statement on a blocking connection, in its transaction or by itself, and hand its rows on."""
    if is_async(connection):
        raise InvalidArgument("this is an async connection, and a blocking one is needed; nothing was done")
    return cast(_T, _run(connection, statement, arguments, then, joins=False))


def asked_in(tx: Any, asked: Asked[_T]) -> _T:
    """Run all statements of a step in the caller's transaction, on a blocking connection."""
    rows: Any = None
    while True:
        try:
            ask = asked.send(rows)
        except StopIteration as over:
            return cast(_T, over.value)
        rows = run_in(tx, ask.statement, ask.arguments, list)


async def asked_in_async(tx: Any, asked: Asked[_T]) -> _T:
    """The same on an async connection."""
    rows: Any = None
    while True:
        try:
            ask = asked.send(rows)
        except StopIteration as over:
            return cast(_T, over.value)
        rows = await cast(Awaitable[Any], run_in(tx, ask.statement, ask.arguments, list))


def _run(tx: Any, statement: str, arguments: list[Any], then: Then[_T], *, joins: bool) -> _T | Awaitable[_T]:
    """`joins`: refuse a connection without a transaction."""
    kind = kind_of(tx, _KNOWN)
    if kind is not None:
        answer: _T | Awaitable[_T] = _KNOWN[kind](tx, statement, arguments, then, joins)
        return answer
    if isinstance(tx, str):
        return _django(django_connection(tx), statement, arguments, then, joins)
    raise InvalidArgument(
        f"tx is {with_article(f'{type(tx).__module__}.{type(tx).__name__}')}, "
        "which is no connection of psycopg, psycopg2, asyncpg, SQLAlchemy or Django"
    )


# ------------------------------------------------------------------ psycopg


def _psycopg(tx: Any, statement: str, arguments: list[Any], then: Then[_T], joins: bool) -> _T:
    _refuse_autocommit(joins and tx.autocommit and tx.info.transaction_status.name == "IDLE")
    text, values = _percent(statement, arguments)
    with _ours(), tx.cursor(row_factory=_plain_rows()) as cursor:
        rows = cursor.execute(text.encode(), values).fetchall()
    return then(_plain(rows))


async def _psycopg_async(tx: Any, statement: str, arguments: list[Any], then: Then[_T], joins: bool) -> _T:
    _refuse_autocommit(joins and tx.autocommit and tx.info.transaction_status.name == "IDLE")
    text, values = _percent(statement, arguments)
    with _ours():
        async with tx.cursor(row_factory=_plain_rows()) as cursor:
            await cursor.execute(text.encode(), values)
            rows = await cursor.fetchall()
    return then(_plain(rows))


def _plain_rows() -> Any:
    from psycopg.rows import tuple_row

    return tuple_row


def _psycopg2(tx: Any, statement: str, arguments: list[Any], then: Then[_T], joins: bool) -> _T:
    library = import_module("psycopg2.extensions")  # has no types
    is_idle = tx.info.transaction_status == library.TRANSACTION_STATUS_IDLE
    _refuse_autocommit(joins and tx.autocommit and is_idle)
    with _ours(), tx.cursor(cursor_factory=library.cursor) as own:
        own.execute(*_percent(statement, arguments))
        rows = own.fetchall()
    return then(_plain(rows))


def _percent(statement: str, arguments: list[Any]) -> tuple[str, dict[str, Any]]:
    """By name: a statement may use its arguments in any order."""
    values = {f"a{place}": value for place, value in enumerate(arguments, 1)}
    return numbered(statement, lambda number: f"%(a{number})s"), values


# ------------------------------------------------------------------ asyncpg


async def _asyncpg(tx: Any, statement: str, arguments: list[Any], then: Then[_T], joins: bool) -> _T:
    _refuse_autocommit(joins and not tx.is_in_transaction())
    with _ours():
        rows = await tx.fetch(statement, *arguments)
    return then(rows)


# ------------------------------------------------------------------ SQLAlchemy


def _sqlalchemy(tx: Any, statement: str, arguments: list[Any], then: Then[_T], joins: bool) -> _T:
    with _ours():
        refuse_two_phase(tx)
        if joins:
            refuse_autocommit(connection_of(tx))
        rows = tx.execute(*_named(statement, arguments)).fetchall()
    return then(_plain(rows))


async def _sqlalchemy_async(tx: Any, statement: str, arguments: list[Any], then: Then[_T], joins: bool) -> _T:
    with _ours():
        refuse_two_phase(tx)
        connection = connection_of(tx)
        if joins:
            refuse_autocommit((connection if connection is tx else await connection).sync_connection)
        rows = (await tx.execute(*_named(statement, arguments))).fetchall()
    return then(_plain(rows))


def _named(statement: str, arguments: list[Any]) -> tuple[Any, dict[str, Any]]:
    from sqlalchemy import text

    # A colon that is part of a cast must not look like the name of an argument.
    named = numbered(statement.replace("::", r"\:\:"), lambda number: f":a{number}")
    return text(named), {f"a{place}": value for place, value in enumerate(arguments, 1)}


# ------------------------------------------------------------------ Django


def _django(tx: Any, statement: str, arguments: list[Any], then: Then[_T], joins: bool) -> _T:
    if tx.vendor != "postgresql":
        raise InvalidArgument(f"tx is a Django connection to {tx.vendor}; the jobs live in Postgres")
    _refuse_autocommit(joins and tx.get_autocommit() and not tx.in_atomic_block)
    with _ours(), tx.cursor() as cursor:
        cursor.execute(*_percent(statement, arguments))
        rows = cursor.fetchall()
    return then(_plain(rows, tx.timezone_name))


# ------------------------------------------------------------------ shared


def _plain(rows: Sequence[Any], timezone: str = "") -> list[tuple[Any, ...]]:
    """Values as asyncpg has them. The others hand out instants in the time zone of the session, and without
    USE_TZ Django leaves the zone out; psycopg2 hands out bytes as memoryview.
    """
    return [tuple(_value(value, timezone) for value in row) for row in rows]


def _value(value: Any, timezone: str) -> Any:
    if isinstance(value, memoryview):
        return value.tobytes()
    if isinstance(value, datetime):
        if timezone and value.tzinfo is None:
            value = value.replace(tzinfo=ZoneInfo(timezone))
        return value.astimezone(UTC)
    return value


def _refuse_autocommit(is_alone: bool) -> None:
    if is_alone:
        raise InvalidArgument("tx is in autocommit mode and has no transaction open: begin one first")


class _ours:  # noqa: N801 - reads as a word of the statement
    """Errors of the caller's library come out as ours, with the original as their cause."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, TaskHarborError):
            cause = getattr(error, "orig", None) or error.__cause__ or error
            raise ours(cause if isinstance(cause, Exception) else error, writes=False) from error


_KNOWN: dict[str, Callable[..., Any]] = {
    "psycopg.Connection": _psycopg,
    "psycopg.AsyncConnection": _psycopg_async,
    "psycopg2.connection": _psycopg2,
    "asyncpg.Connection": _asyncpg,
    "asyncpg.PoolConnectionProxy": _asyncpg,
    **dict.fromkeys(SQLALCHEMY, _sqlalchemy),
    **dict.fromkeys(SQLALCHEMY_ASYNC, _sqlalchemy_async),
    **dict.fromkeys(DJANGO, _django),
}
