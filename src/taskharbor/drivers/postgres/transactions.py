"""One statement on a connection or session that belongs to the caller, whichever library it is of.

Known by what they are, without importing any of them: psycopg, asyncpg, SQLAlchemy, Django. A
blocking one answers at once, an async one with a coroutine. SQLAlchemy is always spoken to through
its own `execute`: its asyncpg adapter begins lazily, and a statement sent past it would stand
outside of the transaction.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from taskharbor.drivers.borrowed import (
    DJANGO,
    SQLALCHEMY,
    SQLALCHEMY_ASYNC,
    connection_of,
    django_connection,
    kind_of,
    refuse_autocommit,
)
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
    """Run the statement there and hand its rows to `then`."""
    kind = kind_of(tx, _KNOWN)
    if kind is not None:
        answer: _T | Awaitable[_T] = _KNOWN[kind](tx, statement, arguments, then)
        return answer
    if isinstance(tx, str):
        return _django(django_connection(tx), statement, arguments, then)
    raise InvalidArgument(
        f"tx is {with_article(f'{type(tx).__module__}.{type(tx).__name__}')}, "
        "which is no connection of psycopg, asyncpg, SQLAlchemy or Django"
    )


# ------------------------------------------------------------------ psycopg


def _psycopg(tx: Any, statement: str, arguments: list[Any], then: Then[_T]) -> _T:
    _refuse_autocommit(tx.autocommit and tx.info.transaction_status.name == "IDLE")
    with _ours(), tx.cursor(row_factory=_plain_rows()) as cursor:
        rows = cursor.execute(numbered(statement, lambda _: "%s").encode(), arguments).fetchall()
    return then(rows)


async def _psycopg_async(tx: Any, statement: str, arguments: list[Any], then: Then[_T]) -> _T:
    _refuse_autocommit(tx.autocommit and tx.info.transaction_status.name == "IDLE")
    with _ours():
        async with tx.cursor(row_factory=_plain_rows()) as cursor:
            await cursor.execute(numbered(statement, lambda _: "%s").encode(), arguments)
            rows = await cursor.fetchall()
    return then(rows)


def _plain_rows() -> Any:
    from psycopg.rows import tuple_row

    return tuple_row


# ------------------------------------------------------------------ asyncpg


async def _asyncpg(tx: Any, statement: str, arguments: list[Any], then: Then[_T]) -> _T:
    _refuse_autocommit(not tx.is_in_transaction())
    with _ours():
        rows = await tx.fetch(statement, *arguments)
    return then(rows)


# ------------------------------------------------------------------ SQLAlchemy


def _sqlalchemy(tx: Any, statement: str, arguments: list[Any], then: Then[_T]) -> _T:
    with _ours():
        refuse_autocommit(connection_of(tx))
        rows = tx.execute(*_named(statement, arguments)).fetchall()
    return then(rows)


async def _sqlalchemy_async(tx: Any, statement: str, arguments: list[Any], then: Then[_T]) -> _T:
    with _ours():
        connection = connection_of(tx)
        refuse_autocommit((connection if connection is tx else await connection).sync_connection)
        rows = (await tx.execute(*_named(statement, arguments))).fetchall()
    return then(rows)


def _named(statement: str, arguments: list[Any]) -> tuple[Any, dict[str, Any]]:
    from sqlalchemy import text

    # A colon that is part of a cast must not look like the name of an argument.
    named = numbered(statement.replace("::", r"\:\:"), lambda number: f":a{number}")
    return text(named), {f"a{place}": value for place, value in enumerate(arguments, 1)}


# ------------------------------------------------------------------ Django


def _django(tx: Any, statement: str, arguments: list[Any], then: Then[_T]) -> _T:
    if tx.vendor != "postgresql":
        raise InvalidArgument(f"tx is a Django connection to {tx.vendor}; the jobs live in Postgres")
    _refuse_autocommit(tx.get_autocommit() and not tx.in_atomic_block)
    with _ours(), tx.cursor() as cursor:
        cursor.execute(numbered(statement, lambda _: "%s"), arguments)
        rows = cursor.fetchall()
    return then(rows)


# ------------------------------------------------------------------ shared


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
    "asyncpg.Connection": _asyncpg,
    "asyncpg.PoolConnectionProxy": _asyncpg,
    **dict.fromkeys(SQLALCHEMY, _sqlalchemy),
    **dict.fromkeys(SQLALCHEMY_ASYNC, _sqlalchemy_async),
    **dict.fromkeys(DJANGO, _django),
}
