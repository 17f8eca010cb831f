"""Real stores for chaos: each can be reached directly and, where there is a network, through a proxy.

Servers are started with the settings that promise durability: Postgres with fsync, Valkey with an
append-only file flushed at every write. A store lives as long as its `Stores`, and every case gets
an empty namespace of it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Self

from taskharbor.drivers import connect
from taskharbor.testing.servers import PostgresServer, ValkeyServer, free_port
from tests.chaos.framing import Framing, HttpFraming, PostgresFraming, RespFraming

# A server dies with the thread that started it; this one lasts as long as the process.
_starter = ThreadPoolExecutor(1)


def in_starter(start: Callable[[], None]) -> Future[None]:
    """Start a server in the thread that lasts."""
    return _starter.submit(start)


class Store:
    """One empty store of a case."""

    name: ClassVar[str]
    has_network: ClassVar[bool] = False
    framing: ClassVar[Callable[[], Framing]]
    ack_request: ClassVar[str] = ""
    """The request, by its framing's name, that carries settlements of finished jobs."""
    longer_leases: ClassVar[float] = 0.0
    """By how much of what was asked for its leases may be longer."""

    def __init__(self, folder: Path, tag: str) -> None:
        self.folder = folder
        self.tag = tag

    def url(self, port: int | None = None) -> str:
        """Where it is; with a port, the way through a proxy."""
        raise NotImplementedError

    @property
    def port(self) -> int:
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """The process that does its work."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """Make it ready to be opened."""

    def is_free(self) -> bool:
        """Whether nobody holds a lock that would stop everybody else while its owner is frozen."""
        return is_free(self.folder / "effects.db")

    async def close(self) -> None:
        """End what belongs to this store alone."""

    async def crash(self) -> None:
        """kill -9 of the server."""
        raise NotImplementedError

    async def revive(self) -> None:
        """Start it again, and return when it accepts connections."""
        raise NotImplementedError


class SqliteStore(Store):
    name = "sqlite"

    def url(self, port: int | None = None) -> str:
        return f"sqlite:///{self.folder}/jobs.db"

    async def prepare(self) -> None:
        async with connect(self.url()):
            pass  # it migrates itself

    def is_free(self) -> bool:
        return is_free(self.folder / "jobs.db") and super().is_free()


class PostgresStore(Store):
    name = "postgres"
    has_network = True
    framing = PostgresFraming
    ack_request = "exchange.*"
    server: ClassVar[PostgresServer]

    def url(self, port: int | None = None) -> str:
        host = f"127.0.0.1:{port or self.port}"
        return f"postgresql://postgres@{host}/postgres?schema=chaos_{self.tag}"

    @property
    def port(self) -> int:
        return self.server.port

    async def prepare(self) -> None:
        from taskharbor.testing.servers.postgres import migrate_blocking

        await asyncio.to_thread(migrate_blocking, self.url())

    async def crash(self) -> None:
        await asyncio.to_thread(self.server.kill)

    async def revive(self) -> None:
        await asyncio.wrap_future(_starter.submit(self.server.start))


class ValkeyStore(Store):
    name = "valkey"
    has_network = True
    framing = RespFraming
    ack_request = "evalsha|fcall"
    longer_leases = 0.05  # of claims that are sent ahead
    server: ClassVar[ValkeyServer]

    def url(self, port: int | None = None) -> str:
        return f"redis://127.0.0.1:{port or self.port}/0?namespace=chaos-{self.tag}"

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def pid(self) -> int:
        return self.server.pid

    async def crash(self) -> None:
        await asyncio.to_thread(self.server.kill)

    async def revive(self) -> None:
        await asyncio.wrap_future(_starter.submit(self.server.start))


class HttpStore(Store):
    """A TaskHarbor server of its own in front of a SQLite file: workers know nothing but its address."""

    name = "http"
    has_network = True
    framing = HttpFraming
    ack_request = "exchange|settle"  # by itself after a settlement that took long

    def __init__(self, folder: Path, tag: str) -> None:
        super().__init__(folder, tag)
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, port: int | None = None) -> str:
        return f"http://127.0.0.1:{port or self.port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        assert self._process is not None, "it is not running"
        return self._process.pid

    async def prepare(self) -> None:
        await self.revive()

    async def crash(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def revive(self) -> None:
        command = [sys.executable, "-m", "taskharbor", "server", "--port", str(self._port), "--rate", "0"]
        command += ["--url", f"sqlite:///{self.folder}/jobs.db", "--no-scheduler"]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        async with asyncio.timeout(60):
            while not await _is_listening(self._port):
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        await self.crash()


async def _is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


KINDS: dict[str, type[Store]] = {
    kind.name: kind for kind in (SqliteStore, PostgresStore, ValkeyStore, HttpStore)
}


def available() -> list[str]:
    """The stores that this checkout has a driver for."""
    packages = {"sqlite": "sqlite", "postgres": "postgres", "valkey": "redis", "http": "http"}
    return [name for name, package in packages.items() if find_spec(f"taskharbor.drivers.{package}.driver")]


class Stores:
    """The servers of one run, started when they are first asked for."""

    def __init__(self) -> None:
        self._servers: dict[str, PostgresServer | ValkeyServer] = {}
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.close()

    def fresh(self, name: str, folder: Path) -> Store:
        """An empty store of this kind, with its server running."""
        self._count += 1
        kind = KINDS[name]
        if name in ("postgres", "valkey") and name not in self._servers:
            server = PostgresServer(durable=True) if name == "postgres" else ValkeyServer(durable=True)
            _starter.submit(server.start).result()
            self._servers[name] = server
            kind.server = server  # type: ignore[attr-defined]
        return kind(folder, f"{os.getpid()}_{self._count}")


def is_free(path: Path) -> bool:
    """Whether a writer would get in soon."""
    try:
        with closing(sqlite3.connect(path, timeout=0.3, isolation_level=None)) as db:
            db.execute("begin immediate")
            db.execute("rollback")
    except sqlite3.OperationalError:
        return False
    return True
