"""The schema of TaskHarbor in a database of the project: applied by `manage.py migrate`.

Tables come from numbered migrations, each wrapped by one Django migration; the functions of Postgres are
applied by checksum after every `migrate`. All of it runs on Django's own connection, and TaskHarbor's own
ledger says what a database has: a store that `taskharbor migrate up` made is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.migrations import Migration, MigrationLedger
from taskharbor.integrations.django.store import BackendStore

_FUNCTIONS = "functions"


def numbered(number: int) -> Any:
    """The operation of the Django migration for our migration of this number."""
    from django.db.migrations import RunPython

    def apply(_apps: Any, schema_editor: Any) -> None:
        for store in _stores(schema_editor.connection.alias):
            _apply(schema_editor.connection, store, upto=number)

    return RunPython(apply, RunPython.noop, elidable=False)


def bring_up_to_date(*, using: str, **_: Any) -> None:
    """After `migrate`: whatever is missing in this database, functions included.

    Migrations that Django has noted were skipped if no back end named the database at that time.
    """
    from django.db import connections, transaction

    for store in _stores(using):
        if pending_in(connections[using], store):
            step: Any = transaction.atomic(using=using)
            with step:
                _apply(connections[using], store)


def pending_in(connection: Any, store: BackendStore) -> list[str]:
    """The names of what `migrate` would apply to this database for a back end."""
    driver = connect(store.address())
    applied, functions, number = _found(connection, driver)
    missing = [name for name, _ in _tables(driver) if name not in applied]
    ledger = _ledger(driver)
    is_newer = ledger.number >= number
    if is_newer and any(functions.get(name) != digest for name, digest in ledger.digests.items()):
        missing.append(_FUNCTIONS)
    return missing


def _stores(alias: str) -> list[BackendStore]:
    """The stores of the back ends that name this database, one per namespace."""
    from taskharbor.integrations.django.backend import our_backends

    found = {}
    for backend in our_backends():
        if backend.store.database == alias and backend.store.connection.vendor in ("sqlite", "postgresql"):
            found[backend.store.address()] = backend.store
    return list(found.values())


def _apply(connection: Any, store: BackendStore, upto: int | None = None) -> None:
    """Apply the migrations up to this number, or all and the functions."""
    driver = connect(store.address())
    missing = pending_in(connection, store)
    scripts = dict(driver.migration_scripts())
    ledger = [text for name, text in scripts.items() if name.startswith("0000_")]
    texts = [scripts[name] for name in missing if name != _FUNCTIONS and (not upto or int(name[:4]) <= upto)]
    if upto is None and _FUNCTIONS in missing:
        texts.append(scripts[_FUNCTIONS])
    with _own_path(connection), connection.cursor() as cursor:
        for text in [*ledger, *texts]:
            for statement in _statements(connection, text):
                cursor.execute(statement)


@contextmanager
def _own_path(connection: Any) -> Iterator[None]:
    """The scripts set the search path of a Postgres session; afterwards it is as it was."""
    if connection.vendor != "postgresql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("select pg_advisory_xact_lock(hashtextextended('taskharbor', 21))")
        cursor.execute("show search_path")
        before = cursor.fetchone()[0]
        yield
        cursor.execute("select set_config('search_path', %s, false)", [before])


def _statements(connection: Any, text: str) -> list[str]:
    """SQLite runs one statement at a time; Postgres takes a whole script, with functions inside."""
    return [text] if connection.vendor == "postgresql" else Migration(0, "", text).statements()


def _tables(driver: Driver) -> list[tuple[str, str]]:
    scripts = driver.migration_scripts()
    return [(name, text) for name, text in scripts if name[:4].isdigit() and not name.startswith("0000")]


def _found(connection: Any, driver: Driver) -> tuple[set[str], dict[str, str], int]:
    """What the ledger of the database has: migrations, digests of functions, the number of their set."""
    ledger = _ledger(driver)
    functions = ledger.functions
    with connection.cursor() as cursor:
        names: set[str] = set()
        for table in (ledger.migrations, ledger.additions):
            if table is not None and _exists(cursor, connection, table):
                names |= _names(cursor, table)
        if functions is None or not _exists(cursor, connection, functions):
            return names, {}, 0
        cursor.execute(f"select name, digest, set_number from {functions}")  # noqa: S608 - our own name
        rows = cursor.fetchall()
    return names, {row[0]: row[1] for row in rows}, max((row[2] for row in rows), default=0)


def _ledger(driver: Driver) -> MigrationLedger:
    ledger = driver.migration_ledger()
    assert ledger is not None  # noqa: S101 - the stores in a database of Django's have one
    return ledger


def _names(cursor: Any, ledger: str) -> set[str]:
    cursor.execute(f"select name from {ledger}")  # noqa: S608 - our own name
    return {row[0] for row in cursor.fetchall()}


def _exists(cursor: Any, connection: Any, table: str) -> bool:
    if connection.vendor == "postgresql":
        cursor.execute("select to_regclass(%s)", [table])
        return cursor.fetchone()[0] is not None
    cursor.execute("select 1 from sqlite_master where type = 'table' and name = %s", [table])
    return cursor.fetchone() is not None
