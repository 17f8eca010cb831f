"""Enqueueing inside a transaction of the caller's own sqlite3 connection."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from taskharbor.drivers.sqlite.faults import translated
from taskharbor.drivers.sqlite.location import Location
from taskharbor.drivers.sqlite.statements import Statements
from taskharbor.drivers.sqlite.step import Hints, Kept, Step
from taskharbor.errors import InvalidArgument

T = TypeVar("T")


def do_in(tx: Any, work: Callable[[Step], T], location: Location, sql: Statements, now: datetime) -> T:
    """Carry out a step in the caller's transaction: all of it or nothing, and the caller commits."""
    if not isinstance(tx, sqlite3.Connection):
        raise InvalidArgument(f"tx must be a sqlite3.Connection on {location.path}, not {type(tx).__name__}")
    kept_factories = tx.row_factory, tx.text_factory
    tx.row_factory, tx.text_factory = None, str
    try:
        _check(tx, location)
        with translated(location.path):
            return _in_savepoint(tx, work, sql, now)
    finally:
        tx.row_factory, tx.text_factory = kept_factories


def _in_savepoint(tx: sqlite3.Connection, work: Callable[[Step], T], sql: Statements, now: datetime) -> T:
    # Who should be woken after a commit that is not ours to see? Nobody: polling finds the job.
    step = Step(tx, sql, Kept(), now, Hints())
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
    return answer


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
