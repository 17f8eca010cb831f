"""Connections that belong to the caller, recognised by class name, without importing their library."""

from __future__ import annotations

from collections.abc import Iterable
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


def refuse_autocommit(connection: Any) -> None:
    """Refuse SQLAlchemy's AUTOCOMMIT: it looks like a transaction, but every statement commits itself."""
    if getattr(connection.connection.dbapi_connection, "autocommit", None) is True:
        raise no_transaction(
            "tx has the isolation level AUTOCOMMIT, so each of its statements is committed by itself: use a "
            "connection or session with another isolation level"
        )


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
