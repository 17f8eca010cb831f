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


# What must not be found in any store, in words and in SQL.
_FAULTS = {
    "a part of a job without its body": """
        select seq from (
          select seq from th_past union all select seq from th_later union all select seq from th_lease
          union all select seq from th_outcome union all select seq from th_result
          union all select seq from th_alias union all select seq from th_key
        ) where seq not in (select seq from th_body)""",
    "a job in more or fewer places than one": """
        select b.seq from th_body b where 1 <> (
          select count(*) from (
            select 1 from th_ready r where b.seq between r.seq and r.last
            union all select 1 from th_later l where l.seq = b.seq
            union all select 1 from th_lease l where b.seq between l.seq and l.last
            union all select 1 from th_outcome o where b.seq between o.seq and o.last
            union all select 1 from th_past p where p.seq = b.seq and p.blocked = 1
          ))""",
    "a run that holds no job": """
        select seq, last from (
          select seq, last from th_ready union all select seq, last from th_lease
          union all select seq, last from th_outcome
        ) where last < seq""",
    "a run that holds a job that is not there": """
        select seq, last from (
          select seq, last from th_lease union all select seq, last from th_outcome
        ) r where last - seq + 1 <> (select count(*) from th_body b where b.seq between r.seq and r.last)""",
    "a run of jobs that are not alike": """
        select seq from th_lease
        where last > seq and (flags or bumps or coalesce(fence, updated_at, progress) is not null)
        union all select seq from th_outcome where last > seq and version is null""",
    "a result of a job that is not over": """
        select r.seq from th_result r where not exists (
          select 1 from th_outcome o where r.seq between o.seq and o.last and o.version is not null)""",
    "a grant that miscounts its leases": """
        select no from th_grant
        where held = 0 or held <> (
          select coalesce(sum(last - seq + 1), 0) from th_lease where grant_no = th_grant.no)""",
    "a lease without its grant": "select seq from th_lease where grant_no not in (select no from th_grant)",
    "a miscounted block": """
        select 1 where (select count(*) from th_body where copy_of is null) <> (
          select coalesce(sum(scheduled + ready + blocked + running + completed + failed + cancelled), 0)
          from th_tally
        )""",
}


def is_sound(path: Path) -> bool:
    """Whether SQLite finds no fault with the file, and no table disagrees with another."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        for fault, sql in _FAULTS.items():
            assert connection.execute(sql).fetchall() == [], fault
    finally:
        connection.close()
    return True
