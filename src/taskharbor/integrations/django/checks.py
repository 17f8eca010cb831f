"""System checks: what `manage.py check` says about the back ends of TaskHarbor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from taskharbor.errors import InvalidArgument, TaskHarborError
from taskharbor.integrations.django.store import is_in_memory
from taskharbor.model.checks import check_name

if TYPE_CHECKING:
    from taskharbor.integrations.django.backend import StoredTasks

APP = "taskharbor.integrations.django"


def check_backend(backend: StoredTasks) -> list[Any]:
    """Errors and warnings about the settings of one back end; no query is made."""
    return [*_queues(backend), *_database(backend)]


def _queues(backend: StoredTasks) -> Iterator[Any]:
    from django.core import checks

    for queue in sorted(backend.queues):
        try:
            check_name(queue, "queue")
        except InvalidArgument as error:
            yield checks.Error(
                f"TASKS[{backend.alias!r}]: {error}",
                hint="Rename it in QUEUES and in the tasks.",
                id="taskharbor.E004",
            )


def _database(backend: StoredTasks) -> Iterator[Any]:
    from django.apps import apps
    from django.core import checks
    from django.db import connections

    alias = backend.store.database
    if alias is None:
        return
    where = f"TASKS[{backend.alias!r}]"
    if not apps.is_installed(APP):
        yield checks.Error(
            f"{where} keeps jobs in the database {alias!r}, but its app is not installed.",
            hint=f'Add "{APP}" to INSTALLED_APPS and run `python manage.py migrate`.',
            id="taskharbor.E001",
        )
    if alias not in connections:
        yield checks.Error(
            f"{where} names the database {alias!r}, which is not in DATABASES.",
            hint=f"Known: {', '.join(connections)}.",
            id="taskharbor.E002",
        )
        return
    connection = connections[alias]
    if connection.vendor == "sqlite":
        yield from _sqlite(where, connection)
    elif connection.vendor == "postgresql":
        yield from _postgres(where)
    else:
        yield checks.Error(
            f"{where}: jobs cannot be kept in {connection.display_name}.",
            hint='Give OPTIONS a "url", for example redis:// or postgresql://; "on_commit": True waits '
            "for the commit.",
            id="taskharbor.E003",
        )


def _sqlite(where: str, connection: Any) -> Iterator[Any]:
    from django.core import checks

    settings = connection.settings_dict
    if str(settings.get("OPTIONS", {}).get("transaction_mode", "")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield checks.Warning(
            f"{where}: transactions of this SQLite database begin without a write lock. A transaction that "
            "reads and then enqueues fails with 'database is locked' beside a worker.",
            hint='Set OPTIONS["transaction_mode"] = "IMMEDIATE" in DATABASES.',
            id="taskharbor.W001",
        )
    test_name = settings.get("TEST", {}).get("NAME")
    if test_name is None or is_in_memory(str(test_name)):
        yield checks.Warning(
            f"{where}: the test database is in memory, where jobs cannot be kept.",
            hint='Set TEST["NAME"] in DATABASES to a file, or use Django\'s DummyBackend in tests.',
            id="taskharbor.W002",
        )


def _postgres(where: str) -> Iterator[Any]:
    from importlib.util import find_spec

    from django.core import checks

    if find_spec("psycopg2") is not None and find_spec("psycopg") is not None:
        yield checks.Warning(
            f"{where}: psycopg2 and psycopg 3 are installed, and Django uses psycopg 3.",
            hint="TaskHarbor's extra brings psycopg 3. Uninstall psycopg2 once the project works with it, or "
            'silence this with SILENCED_SYSTEM_CHECKS = ["taskharbor.W003"].',
            id="taskharbor.W003",
        )


def check_migrations(*, databases: Sequence[str] | None = None, **_: Any) -> list[Any]:
    """Databases that a back end uses and that are not migrated: `manage.py check --database default`."""
    from django.core import checks
    from django.db import DatabaseError, connections

    from taskharbor.integrations.django.backend import our_backends
    from taskharbor.integrations.django.schema import pending_in

    found = []
    for backend in our_backends():
        alias = backend.store.database
        if alias is None or alias not in (databases or ()) or alias not in connections:
            continue
        try:
            missing = pending_in(connections[alias], backend.store)
        except (DatabaseError, TaskHarborError):
            continue  # no such database yet, or one that other checks are about
        if missing:
            warning = checks.Warning(
                f"TASKS[{backend.alias!r}]: the database {alias!r} lacks {', '.join(missing)}.",
                hint=f"Run `python manage.py migrate --database {alias}`.",
                id="taskharbor.W004",
            )
            found.append(warning)
    return found
