"""Connections that belong to the caller, recognised by class name, without importing their library."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from taskharbor.errors import InvalidArgument

SQLALCHEMY = frozenset({"sqlalchemy.Session", "sqlalchemy.Connection", "sqlalchemy.scoped_session"})
SQLALCHEMY_ASYNC = frozenset(
    {"sqlalchemy.AsyncSession", "sqlalchemy.AsyncConnection", "sqlalchemy.async_scoped_session"}
)
_CONNECTIONS = ("sqlalchemy.Connection", "sqlalchemy.AsyncConnection")
DJANGO = frozenset({"django.BaseDatabaseWrapper", "django.ConnectionProxy"})


def kind_of(tx: Any, known: Iterable[str]) -> str | None:
    """The first of these names, library.Class, that matches the object's class or a base class; else None."""
    names = (f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(tx).__mro__)
    return next((name for name in names if name in known), None)


def connection_of(tx: Any) -> Any:
    """The SQLAlchemy connection of a connection or session; for an async session a coroutine."""
    return tx if kind_of(tx, _CONNECTIONS) else tx.connection()


def is_autocommit(connection: Any) -> bool:
    """Whether a SQLAlchemy connection has the isolation level AUTOCOMMIT; sqlite3 does not say so."""
    return getattr(connection.connection.dbapi_connection, "autocommit", None) is True


def refuse_autocommit(connection: Any) -> None:
    """Refuse SQLAlchemy's AUTOCOMMIT: it looks like a transaction, but every statement commits itself."""
    if is_autocommit(connection):
        raise no_transaction(
            "tx has the isolation level AUTOCOMMIT, so each of its statements is committed by itself: use a "
            "connection or session with another isolation level"
        )


def refuse_two_phase(tx: Any) -> None:
    """Refuse SQLAlchemy's two-phase transactions: Postgres cannot prepare one that has a wake-up in it, and
    SQLite has none.
    """
    session = session_of(tx)
    if session is None:  # a connection; an async one has another inside
        transaction = getattr(tx, "sync_connection", tx).get_transaction()
        is_two_phase = kind_of(transaction, {"sqlalchemy.TwoPhaseTransaction"}) is not None
    else:
        is_two_phase = session.twophase
    if is_two_phase:
        raise no_transaction("tx is a two-phase transaction, which cannot carry jobs: use a plain one")


def no_transaction(why: str) -> InvalidArgument:
    return InvalidArgument(f"{why}; nothing was stored")


def django_connection(alias: str) -> Any:
    """The Django connection with this alias."""
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.db import connections
        from django.utils.connection import ConnectionDoesNotExist
    except ImportError:
        raise no_transaction(f"tx={alias!r} is no connection, and Django is not installed") from None
    try:
        return connections[alias]
    except (ConnectionDoesNotExist, ImproperlyConfigured) as error:
        raise no_transaction(f"tx={alias!r} is no connection, and Django knows none of that name") from error


# ------------------------------------------------------------------ after the commit


def when_committed(tx: Any, call: Callable[[], object]) -> bool:
    """Have this called once, right after the commit of the caller's transaction; never if it is undone.

    False where the library does not say when it commits: then nothing is called.
    """
    if isinstance(tx, str):
        tx = django_connection(tx)
    if kind_of(tx, DJANGO):
        if tx.in_atomic_block:
            tx.on_commit(call)
        return bool(tx.in_atomic_block)
    session = session_of(tx)
    if session is not None:
        _calls_of(session).append(call)
    return session is not None


def session_of(tx: Any) -> Any:
    """The blocking SQLAlchemy session in this, or None."""
    kind = kind_of(tx, {*SQLALCHEMY, *SQLALCHEMY_ASYNC})
    if kind in ("sqlalchemy.scoped_session", "sqlalchemy.async_scoped_session"):
        return session_of(tx())
    if kind == "sqlalchemy.AsyncSession":
        return tx.sync_session
    return tx if kind == "sqlalchemy.Session" else None


_WAITING = "taskharbor.when_committed"


def _calls_of(session: Any) -> list[Callable[[], object]]:
    """What waits for the commit of the transaction that is open now, a savepoint or the whole."""
    from sqlalchemy import event

    if not session.in_transaction():
        session.begin()  # as its first statement would
    if _WAITING not in session.info:
        session.info[_WAITING] = {}
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_transaction_end", _ended)
    calls: list[Callable[[], object]] = session.info[_WAITING].setdefault(_innermost(session), [])
    return calls


def _innermost(session: Any) -> Any:
    return session.get_nested_transaction() or session.get_transaction()


def _committed(session: Any) -> None:
    """A released savepoint hands its calls to the transaction around it: only that one is a commit."""
    transaction = _innermost(session)
    calls = session.info[_WAITING].pop(transaction, [])
    if transaction.parent is not None:
        session.info[_WAITING].setdefault(transaction.parent, []).extend(calls)
        return
    for call in calls:
        call()


def _ended(session: Any, transaction: Any) -> None:
    """Rolled back, or closed without a commit; after a commit nothing is left here."""
    session.info[_WAITING].pop(transaction, None)
