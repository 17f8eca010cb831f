"""SqliteDriver: jobs in one file. Its parts are in attempts.py, control.py, queries.py and registry.py.

The tables are drawn in sql/migrations/0001_schema.sql.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any, Self

from taskharbor.drivers.borrowed import no_transaction
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import DriverInfo
from taskharbor.drivers.sqlite import schema
from taskharbor.drivers.sqlite.attempts import Attempts
from taskharbor.drivers.sqlite.connection import open_looker, open_reader, open_writer, ready
from taskharbor.drivers.sqlite.control import Control
from taskharbor.drivers.sqlite.location import Location, location_of
from taskharbor.drivers.sqlite.queries import Queries
from taskharbor.drivers.sqlite.reader import Reader
from taskharbor.drivers.sqlite.registry import Registry
from taskharbor.drivers.sqlite.step import Step
from taskharbor.drivers.sqlite.wakeups import Ear, Listener
from taskharbor.drivers.sqlite.writer import Writer
from taskharbor.errors import SchemaOutOfDate, StoreRefused
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy


class SqliteDriver(Attempts, Control, Queries, Registry, Driver):
    """Jobs in one SQLite file: no server, many processes on one machine, nothing lost in a power cut."""

    def __init__(
        self, location: Location, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> None:
        super().__init__(location, clock=clock, entropy=entropy)
        self._listeners: set[Listener] = set()

    @classmethod
    def from_url(
        cls, url: str, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> SqliteDriver:
        """sqlite:///relative.db, sqlite:////absolute.db?namespace=…&durability=full|normal&timeout=5"""
        return cls(location_of(url), clock=clock, entropy=entropy)

    def another(self) -> SqliteDriver:
        one = SqliteDriver(self._location, clock=self.clock, entropy=self.entropy.split("another"))
        return one.of_the_same_store(self)

    # ------------------------------------------------------------------ open and close

    async def do_open(self) -> None:
        loop = asyncio.get_running_loop()
        writer, reader = await loop.run_in_executor(None, self._connect)
        self._writer = Writer(
            writer, self._location, self._sql, self.clock, self.entropy, self._bell.ring, self.orphans
        )
        self._reader = Reader(reader, self._location, self._sql, self.clock)

    def check_tx(self, tx: Any) -> None:
        """An open transaction of the caller keeps us from making the store: refuse, and say what to do."""
        try:
            open_looker(self._location, schema.check).close()
        except (StoreRefused, SchemaOutOfDate) as error:
            raise no_transaction(
                f"the store in {self._location.path} is not made yet, and your transaction is in the way. "
                "Open it before you begin one, with harbor.open() or `await harbor.aopen()`"
            ) from error

    async def open_to_look(self) -> Self:
        return await self._open_reader(schema.check)

    async def open_unmigrated(self) -> Self:
        """Nothing is written before `migrate`, and a file that is not there is not made."""
        return await self._open_reader(None)

    async def _open_reader(self, check: Callable[[sqlite3.Connection, Location], None] | None) -> Self:
        if not self._is_open:
            loop = asyncio.get_running_loop()
            reader = await loop.run_in_executor(None, open_looker, self._location, check)
            self._reader = Reader(reader, self._location, self._sql, self.clock)
            self._is_open = self._only_looks = True
        return self

    def _connect(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        writer = open_writer(self._location, self.entropy)
        try:
            schema.migrate(writer, self._location, self.clock, self.entropy)
            ready(writer)
            return writer, open_reader(self._location)
        except BaseException:
            writer.close()
            raise

    async def do_close(self) -> None:
        for listener in list(self._listeners):
            await listener.aclose()
        if self._writer is not None:
            await self._writer.close()
        if self._reader is not None:
            await self._reader.close()
        self._bell.close()

    def do_wakeups(self, queues: tuple[str, ...], worker_id: str) -> Listener:
        ear = Ear(self._location.namespace, worker_id, queues)
        listener = Listener(self._location.path, ear, self.entropy, self._listeners.discard)
        self._listeners.add(listener)
        return listener

    # ------------------------------------------------------------------ info

    async def do_info(self) -> DriverInfo:
        def look(step: Step) -> tuple[int, int]:
            (pages,) = step.connection.execute("pragma page_count").fetchone()
            (page_bytes,) = step.connection.execute("pragma page_size").fetchone()
            return pages, page_bytes

        pages, page_bytes = await self._read(look, None)
        return DriverInfo(
            driver="sqlite",
            store=f"SQLite {sqlite3.sqlite_version}",
            location=self._location.url,
            durability="D3" if self._location.durability == "full" else "D2",
            schema=schema.MIGRATIONS[-1].name,
            at=self.clock.now(),
            details={
                "journal": "wal",
                "synchronous": self._location.durability,
                "namespace": self._location.namespace,
                "file_bytes": str(pages * page_bytes),
            },
        )

    # ------------------------------------------------------------------ schema

    def migration_scripts(self) -> list[tuple[str, str]]:
        return schema.scripts(self._location)

    async def do_pending_migrations(self) -> list[str]:
        return await self._read(lambda step: schema.pending_names(step.connection, self._location), None)

    async def do_migrate(self) -> list[str]:
        """Opening as usual has migrated already; then nothing is left."""
        if not self._only_looks:
            return await self.do_pending_migrations()
        names = await asyncio.get_running_loop().run_in_executor(None, self._migrate)
        if self._reader is not None:  # what it looked at may not have been there
            await self._reader.close()
        self._reader = Reader(open_reader(self._location), self._location, self._sql, self.clock)
        return names

    def _migrate(self) -> list[str]:
        with closing(open_writer(self._location, self.entropy)) as writer:
            return schema.migrate(writer, self._location, self.clock, self.entropy)
