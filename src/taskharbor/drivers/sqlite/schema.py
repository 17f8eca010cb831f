"""The schema of one namespace: migrated at open, once however many processes open at the same time.

`.pre` migrations add what the release before need not know. A ledger of their own notes them, so that a
program of that release opens the file, too.
"""

from __future__ import annotations

import sqlite3

from taskharbor.drivers.migrations import Migration, find_migrations, pending
from taskharbor.drivers.sqlite.faults import translated
from taskharbor.drivers.sqlite.location import Location
from taskharbor.drivers.sqlite.step import in_namespace
from taskharbor.drivers.sqlite.writer import begin
from taskharbor.errors import SchemaOutOfDate, StoreRefused
from taskharbor.model.clock import Clock, micros
from taskharbor.model.entropy import Entropy

MIGRATIONS = find_migrations("taskharbor.drivers.sqlite")
_UNRELEASED = "0001_jobs"  # the first migration of stores from before the first release
LEDGERS = ("th_migration", "th_addition")
"""The second is of `.pre` migrations. Release 0.1.0 reads the first, and refuses a name that is new to it."""
_LEDGER = "create table if not exists {} (name text primary key, applied_at integer not null) strict"

_NOW = "cast((julianday('now') - 2440587.5) * 86400000000 as integer)"  # in µs


def scripts(location: Location) -> list[tuple[str, str]]:
    """The migrations as (name, SQL), each with the line that notes it in the store, for this namespace."""
    noted = [(m.name, f"{m.text.rstrip()}\n{_noted(m, repr(m.name), _NOW)};\n") for m in MIGRATIONS]
    scripts = [("0000_ledger", "".join(f"{_LEDGER.format(ledger)};\n" for ledger in LEDGERS)), *noted]
    return [(name, in_namespace(text, location.table_prefix)) for name, text in scripts]


def pending_names(connection: sqlite3.Connection, location: Location) -> list[str]:
    """What this code needs and the file does not have."""
    with translated(location.path):
        return [migration.name for migration in _needed(_applied(connection, location))]


def check(connection: sqlite3.Connection, location: Location) -> None:
    """Refuse a file that this code cannot look into as it is, and say what to do."""
    applied = _applied(connection, location)
    if not applied:
        named = f" under the namespace {location.namespace!r}" if location.namespace else ""
        raise StoreRefused(
            f"{location.path} is no store of TaskHarbor{named}, and looking makes none. Check the address; "
            "a store is made when a job is enqueued, when a worker starts, or by `taskharbor migrate up`"
        )
    if missing := [migration.name for migration in _needed(applied)]:
        raise SchemaOutOfDate(
            f"the schema in {location.path} is not up to date: {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing, and looking migrates nothing; "
            "run `taskharbor migrate up`, or start a worker of this version",
            tuple(missing),
        )


def out_of_date(connection: sqlite3.Connection, location: Location) -> SchemaOutOfDate:
    """What a statement on the caller's connection means that misses a table."""
    missing = tuple(pending_names(connection, location))
    return SchemaOutOfDate(
        f"the schema in {location.path} is not up to date: {', '.join(missing) or 'a table'} "
        f"{'are' if len(missing) > 1 else 'is'} missing; nothing was stored. Run `taskharbor migrate up`",
        missing,
    )


def migrate(connection: sqlite3.Connection, location: Location, clock: Clock, entropy: Entropy) -> list[str]:
    """Apply what is pending in one transaction: all of it, or nothing. Answers what this call applied."""
    if not pending_names(connection, location):
        return []
    begin(connection, location, entropy)
    try:
        with translated(location.path):
            names = _apply_pending(connection, location, clock)
            connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    return names


def _apply_pending(connection: sqlite3.Connection, location: Location, clock: Clock) -> list[str]:
    """Asked again under the lock: another process may have been first."""
    prefix = location.table_prefix
    for ledger in LEDGERS:
        connection.execute(in_namespace(_LEDGER.format(ledger), prefix))
    names = []
    for migration in _needed(_applied(connection, location)):
        for statement in migration.statements():
            connection.execute(in_namespace(statement, prefix))
        connection.execute(
            in_namespace(_noted(migration, ":name", ":at"), prefix),
            {"name": migration.name, "at": micros(clock.now())},
        )
        names.append(migration.name)
    return names


def _noted(migration: Migration, name: str, at: str) -> str:
    ledger = LEDGERS[migration.name.endswith(".pre")]
    return f"insert into {ledger} (name, applied_at) values ({name}, {at})"  # noqa: S608 - names of our own


def _needed(applied: list[str]) -> tuple[Migration, ...]:
    """What this code would apply. What a newer release has added is left alone."""
    known = {migration.name for migration in MIGRATIONS}
    return pending(MIGRATIONS, [name for name in applied if name in known or not name.endswith(".pre")])


def _applied(connection: sqlite3.Connection, location: Location) -> list[str]:
    names: list[str] = []
    for ledger in (in_namespace(table, location.table_prefix) for table in LEDGERS):
        known = connection.execute(
            "select 1 from sqlite_master where type = 'table' and name = :name", {"name": ledger}
        ).fetchone()
        if known is not None:
            names += [name for (name,) in connection.execute(f"select name from {ledger}")]  # noqa: S608 - our own name
    if _UNRELEASED in names:
        raise SchemaOutOfDate(
            f"{location.path} was made by an unreleased version of TaskHarbor, which no release can migrate: "
            "use a new file"
        )
    return names
