"""Empty stores for benchmarks, each with the servers whose CPU time it costs."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import asyncpg

from taskharbor.testing.http_server import HttpServer
from taskharbor.testing.servers import PostgresServer, ValkeyServer
from taskharbor.testing.servers.postgres import migrate_blocking

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Store:
    url: str
    servers: tuple[int, ...] = ()
    """The processes behind it; their children count, too."""


Opening = Callable[[], AbstractContextManager[Store]]


@contextmanager
def opened(name: str, *, is_migrated: bool = True) -> Iterator[Opening]:
    """What makes an empty store of this kind, as often as it is called."""
    with ExitStack() as stack:
        if name == "postgres":  # one server for all, because making one takes seconds
            server = stack.enter_context(PostgresServer(durable=True, settings={"shared_buffers": "128MB"}))
            yield lambda: _postgres(server, is_migrated)
        else:
            yield {"sqlite": _sqlite, "redis": _redis, "http": _http}[name]


STORES = ("sqlite", "postgres", "redis", "http")
DURABILITY = {
    "sqlite": "SQLite: `synchronous` FULL, the default.",
    "postgres": "Postgres: fsync and synchronous_commit on.",
    "redis": "Valkey: append-only file, flushed at every write.",
    "http": "HTTP: a server on SQLite, `synchronous` FULL.",
}
"""What the stores of `opened` do before they answer, for the text of a section."""


@contextmanager
def _sqlite() -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder:
        yield Store(f"sqlite:///{folder}/jobs.db")


@contextmanager
def _postgres(server: PostgresServer, is_migrated: bool) -> Iterator[Store]:
    schema = f"bench_{next(_numbers)}"
    url = f"{server.url}?schema={schema}"
    if is_migrated:
        migrate_blocking(url)
    try:
        yield Store(url, (server.pid,))
    finally:
        asyncio.run(_drop(server.url, schema))


async def _drop(url: str, schema: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f"drop schema {schema} cascade")
    await connection.close()


@contextmanager
def _redis() -> Iterator[Store]:
    with ValkeyServer(durable=True) as server:
        yield Store(server.url, (server.pid,))


@contextmanager
def _http() -> Iterator[Store]:
    with _sqlite() as store, HttpServer(store.url) as server:
        yield Store(server.url, (server.pid,))
