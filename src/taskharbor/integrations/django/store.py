"""Where the jobs of one back end are: in a database of the project, or behind a URL."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from taskharbor.errors import ConfigurationError, SchemaOutOfDate
from taskharbor.harbor import Harbor
from taskharbor.tasks.handler import Handler
from taskharbor.worker import Worker

_OPTIONS = ("database", "url", "namespace", "on_commit", "max_attempts", "timeout")
_TLS = ("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "passfile", "target_session_attrs")


class DjangoHarbor(Harbor):
    """The harbor of a back end: its workers find tasks by their import path."""

    def __init__(self, backend: Any, url: str) -> None:
        super().__init__(url)
        self.backend = backend

    def worker(self, queues: Sequence[str] | None = None, *args: Any, **keywords: Any) -> Worker:
        options = keywords.get("options")
        if queues is None and (options is None or options.queues is None):
            queues = sorted(self.backend.queues) or (self.default_queue,)
        keywords.setdefault("resolve", self._resolve)
        return super().worker(queues, *args, **keywords)

    def _resolve(self, type: str) -> Handler | None:
        from taskharbor.integrations.django.running import handler_of

        return handler_of(self.backend, type)


class BackendStore:
    """The store of one back end. Nothing is opened: a database is used over Django's own connection."""

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        from django.core.exceptions import ImproperlyConfigured

        if unknown := sorted(options.keys() - set(_OPTIONS)):
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]: no such option: {', '.join(unknown)}; options are {', '.join(_OPTIONS)}"
            )
        if options.get("url") and options.get("database"):
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: give either database or url, not both")
        if options.get("on_commit") and not options.get("url"):
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]: on_commit is for a url; in a database the job is part of the transaction"
            )
        self.url: str | None = options.get("url")
        self.on_commit = bool(options.get("on_commit"))
        self.database: str | None = None if self.url else options.get("database", "default")
        self._namespace: str = options.get("namespace", "")
        self._harbor: tuple[str, DjangoHarbor] | None = None

    def harbor(self, backend: Any) -> DjangoHarbor:
        """The harbor; a new one when the database has another name: Django renames it for tests."""
        url = self.address()
        if self._harbor is None or self._harbor[0] != url:
            self._harbor = url, DjangoHarbor(backend, url)
        return self._harbor[1]

    @property
    def connection(self) -> Any:
        """Django's connection to the database, of this thread."""
        from django.db import connections

        return connections[self.database]

    def address(self) -> str:
        """The URL of the store, from Django's settings as they are now."""
        if self.url is None:
            return database_url(self.connection, self._namespace)
        if not self._namespace:
            return self.url
        return f"{self.url}{'&' if '?' in self.url else '?'}{urlencode({'namespace': self._namespace})}"

    def unmigrated(self, error: SchemaOutOfDate) -> SchemaOutOfDate:
        """The same error, with the command to use in a Django project."""
        return SchemaOutOfDate(
            f"the tables of TaskHarbor are missing or old in the database {self.database!r}: run "
            f"`python manage.py migrate --database {self.database}`, with "
            '"taskharbor.integrations.django" in INSTALLED_APPS',
            error.pending,
        )


def database_url(connection: Any, namespace: str = "") -> str:
    """The URL of the store in the database of this Django connection.

    Raises:
        ConfigurationError: jobs cannot be kept there.
    """
    query: dict[str, str] = {}
    if connection.vendor == "sqlite":
        url = _sqlite(connection)
    elif connection.vendor == "postgresql":
        url, query = _postgres(connection)
    else:
        raise ConfigurationError(
            f"jobs cannot be kept in {connection.vendor}: give OPTIONS a url, such as redis:// or "
            "postgresql://"
        )
    if namespace:
        query["namespace"] = namespace
    return f"{url}?{urlencode(query)}" if query else url


def _sqlite(connection: Any) -> str:
    path = str(connection.get_connection_params()["database"])
    if is_in_memory(path):
        raise ConfigurationError(
            "jobs cannot be kept in a SQLite database in memory: give DATABASES a TEST.NAME, or use Django's "
            "DummyBackend in tests"
        )
    return f"sqlite:///{quote(os.path.abspath(path))}"


def is_in_memory(path: str) -> bool:
    return path == ":memory:" or "mode=memory" in path


def _postgres(connection: Any) -> tuple[str, dict[str, str]]:
    params = connection.get_connection_params()
    name = params.get("dbname") or params.get("database")
    if not name:
        raise ConfigurationError(
            "TaskHarbor needs the NAME of the database; with a service file give OPTIONS a url instead"
        )
    query = {key: str(params[key]) for key in _TLS if params.get(key)}
    user, password = params.get("user"), params.get("password")
    login = quote(user, safe="") if user else ""
    if password:
        login += f":{quote(password, safe='')}"
    host, port = params.get("host") or "", params.get("port")
    if host.startswith("/"):
        query["host"] = host
        if port:
            query["port"] = str(port)
        return f"postgresql://{login}{'@' if login else ''}/{quote(name, safe='')}", query
    place = f"[{host}]" if ":" in host else host
    place += f":{port}" if port else ""
    return f"postgresql://{login}{'@' if login else ''}{place}/{quote(name, safe='')}", query
