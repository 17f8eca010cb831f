"""Stores of one case alone: with a server that it may break, or on a disk that it may fill."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from taskharbor.testing.servers import PostgresServer, ValkeyCluster, ValkeyServer
from tests.chaos.case import NotHere
from tests.chaos.stores import PostgresStore, SqliteStore, Store, ValkeyStore, in_starter

MEBIBYTE = 1 << 20
T = TypeVar("T")


async def begun(server: T, start: Callable[[], None]) -> T:
    """The server, started by the thread that all servers of a run belong to."""
    await asyncio.wrap_future(in_starter(start))
    return server


class OwnValkey(ValkeyStore):
    """A Valkey of this case: flushed to disk at every write, unless the case says otherwise."""

    def __init__(self, folder: Path, server: ValkeyServer) -> None:
        super().__init__(folder, "own")
        self.server = server  # type: ignore[misc]  # of this store, not of all
        self.others: list[ValkeyServer] = []
        """Its replicas, and what it was before: they end with it."""

    @classmethod
    async def begin(cls, folder: Path) -> OwnValkey:
        server = ValkeyServer(durable=True)
        return cls(folder, await begun(server, server.start))

    def hand_over_to(self, replica: ValkeyServer) -> None:
        self.others = [*(one for one in self.others if one is not replica), self.server]
        self.server = replica  # type: ignore[misc]

    async def close(self) -> None:
        for server in (self.server, *self.others):
            await asyncio.to_thread(server.close)


class OwnCluster(Store):
    """Three primaries of this case, without replicas: while one is down, so are its queues."""

    name = "cluster"
    has_network = True

    def __init__(self, folder: Path, cluster: ValkeyCluster) -> None:
        super().__init__(folder, "own")
        self.cluster = cluster
        self._turn = 0

    @classmethod
    async def begin(cls, folder: Path) -> OwnCluster:
        cluster = ValkeyCluster(settings={"appendonly": "yes", "appendfsync": "always"})
        return cls(folder, await begun(cluster, cluster.start))

    def url(self, port: int | None = None) -> str:
        return self.cluster.url

    async def crash(self) -> None:
        """kill -9 of one primary, each in its turn."""
        await asyncio.to_thread(self.cluster.nodes[self._turn].kill)

    async def revive(self) -> None:
        await asyncio.wrap_future(in_starter(self.cluster.nodes[self._turn].start))
        self._turn = (self._turn + 1) % len(self.cluster.nodes)

    async def close(self) -> None:
        await asyncio.to_thread(self.cluster.close)


class SqliteOnSmallDisk(SqliteStore):
    """The file alone is on the small disk; what the case writes down is not."""

    def __init__(self, disk: Path) -> None:
        super().__init__(disk, "small")

    def is_free(self) -> bool:
        return True


class PostgresOnSmallDisk(PostgresStore):
    """The tables are on the small disk, the log is not: the server stays up."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        super().__init__(folder, "small")
        self.server = server  # type: ignore[misc]

    def url(self, port: int | None = None) -> str:
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/jobs"

    @classmethod
    async def begin(cls, folder: Path, disk: Path) -> PostgresOnSmallDisk:
        import asyncpg

        server = PostgresServer(durable=True)
        await begun(server, server.start)
        tables = disk / "tables"
        tables.mkdir(mode=0o777)
        tables.chmod(0o777)
        if server._account is not None:
            os.chown(tables, server._account.pw_uid, server._account.pw_gid)
        admin: Any = await asyncpg.connect(server.url)
        await admin.execute(f"create tablespace small location '{tables}'")
        await admin.execute("create database jobs tablespace small")
        await admin.close()
        return cls(folder, server)

    async def close(self) -> None:
        await asyncio.to_thread(self.server.close)


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of its own; without the right to mount one the case cannot run."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=777", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        raise NotHere("may not mount a file system here")
    for parent in (disk, *list(disk.parents)[:2]):
        parent.chmod(parent.stat().st_mode | 0o755)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
