"""The stores that can be simulated: the real drivers, with nothing in them that waits."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.drivers.sqlite.location import Location
from taskharbor.drivers.sqlite.reader import Reader
from taskharbor.drivers.sqlite.step import Step
from taskharbor.drivers.sqlite.writer import Writer, WriteRequest
from taskharbor.errors import DriverClosed
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy

T = TypeVar("T")
MakeDriver = Callable[[Clock, Entropy], Driver]


class InlineSqlite(SqliteDriver):
    """The SQLite driver in the thread of its caller; its own two threads are there and have nothing to do."""

    def __init__(
        self, location: Location, opened: list[Writer | Reader], *, clock: Clock, entropy: Entropy
    ) -> None:
        super().__init__(location, clock=clock, entropy=entropy)
        self.capabilities = replace(self.capabilities, wakeups=False)
        self._opened = opened

    def another(self) -> InlineSqlite:
        entropy = self.entropy.split("another")
        return InlineSqlite(self._location, self._opened, clock=self.clock, entropy=entropy)

    async def do_open(self) -> None:
        writer, reader = self._connect()
        self._writer = Writer(
            writer, self._location, self._sql, self.clock, self.entropy, self._bell.ring, self.orphans
        )
        self._reader = Reader(reader, self._location, self._sql, self.clock)
        self._opened += [self._writer, self._reader]

    async def do_close(self) -> None:
        """The threads are ended when the world is over: they would answer at a moment of their own."""

    async def _write(self, work: Callable[[Step], T], now: datetime | None) -> T:
        if self._writer is None:
            raise DriverClosed
        return self._writer.do_blocking(work, now)

    async def _read(self, look: Callable[[Step], T], now: datetime | None) -> T:
        if self._reader is None:
            raise DriverClosed
        request = WriteRequest(look, now, None)
        self._reader._look(request)
        if request.error is not None:
            raise request.error
        answer: T = request.answer
        return answer


class SqliteFile:
    """A file for one world, gone with it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="taskharbor-simulation-")
        self._opened: list[Writer | Reader] = []

    def driver(self, clock: Clock, entropy: Entropy) -> Driver:
        # Nothing here loses power: a world is over before it could.
        location = Location(path=str(Path(self._folder.name) / "jobs.db"), durability="normal")
        return InlineSqlite(location, self._opened, clock=clock, entropy=entropy)

    def close(self) -> None:
        asyncio.run(self._end_threads())
        self._folder.cleanup()

    async def _end_threads(self) -> None:
        for opened in self._opened:
            await opened.close()


def memory(clock: Clock, entropy: Entropy) -> Driver:
    return MemoryDriver(clock=clock, entropy=entropy)
