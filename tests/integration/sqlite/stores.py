"""What the tests of this folder share: stores in files, jobs, and a look behind the driver's back."""

from __future__ import annotations

import itertools
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from taskharbor.drivers.messages import Claim
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob

NOW = datetime(2030, 1, 1, tzinfo=UTC)
_numbers = itertools.count()


def driver_on(path: Path, options: str = "durability=normal", seed: int | None = None) -> SqliteDriver:
    """A handle that need not wait for the disk, unless the test says otherwise."""
    return SqliteDriver.from_url(f"sqlite:///{path}?{options}", entropy=Entropy(seed))


def writing(driver: SqliteDriver) -> sqlite3.Connection:
    """The connection that an open driver writes with."""
    assert driver._commits is not None
    return driver._commits._connection


def new_job(**fields: Any) -> NewJob:
    job_id = Entropy(next(_numbers)).job_id(NOW)
    return NewJob(**{"id": job_id, "type": "test.job", "payload": b"payload", **fields})


def claim(limit: int = 10, queue: str = "default", lease_for: timedelta = timedelta(seconds=30)) -> Claim:
    return Claim(queues=(queue,), worker_id="worker-1", limit=limit, lease_for=lease_for)


def content(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, in an order that does not depend on how it got there."""
    connection = sqlite3.connect(path)
    try:
        tables = [
            name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")
        ]
        return {name: sorted(connection.execute(f"select * from {name}"), key=repr) for name in tables}
    finally:
        connection.close()


def is_sound(path: Path) -> bool:
    """Whether SQLite finds no fault with the file, and no table disagrees with another."""
    connection = sqlite3.connect(path)
    try:
        (word,) = connection.execute("pragma integrity_check").fetchone()
        strays = [
            connection.execute(f"select count(*) from th_{name} where seq not in (select seq from th_body)")
            for name in ("past", "ready", "later", "lease", "outcome", "alias", "key")
        ]
        (wrong_grants,) = connection.execute(
            "select count(*) from th_grant where held <> "
            "(select count(*) from th_lease where grant_no = th_grant.no)"
        ).fetchone()
        (jobs,) = connection.execute("select count(*) from th_body where copy_of is null").fetchone()
        (counted,) = connection.execute(
            "select coalesce(sum(scheduled + ready + blocked + running + completed + failed + cancelled), 0) "
            "from th_tally"
        ).fetchone()
        return (
            word == "ok"
            and not any(row.fetchone()[0] for row in strays)
            and not wrong_grants
            and jobs == counted
        )
    finally:
        connection.close()
