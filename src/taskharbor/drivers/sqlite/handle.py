"""The base of every part of the driver: one open file with its writer and its reader."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.sqlite.location import Location
from taskharbor.drivers.sqlite.reader import Reader
from taskharbor.drivers.sqlite.statements import statements_for
from taskharbor.drivers.sqlite.step import Step
from taskharbor.drivers.sqlite.wakeups import Bell
from taskharbor.drivers.sqlite.writer import Writer
from taskharbor.errors import DriverClosed, StoreRefused
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy

T = TypeVar("T")

_CAPABILITIES = Capabilities(
    wakeups=True,
    multiprocess=True,
    durable=True,
    tx=True,
    one_writer=True,
    blocking_enqueue=True,
    atomic_across_queues=True,
)


class Handle(Driver):
    """Carries out steps: those that write in group commits, those that look beside them."""

    def __init__(
        self, location: Location, *, clock: Clock | None = None, entropy: Entropy | None = None
    ) -> None:
        super().__init__(_CAPABILITIES, clock=clock, entropy=entropy)
        self._location = location
        self._sql = statements_for(location.table_prefix)
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._bell = Bell(location.path, location.namespace)
        self._only_looks = False

    async def _write(self, work: Callable[[Step], T], now: datetime | None) -> T:
        if self._only_looks:
            raise StoreRefused(
                f"{self._location.path} was opened to look only; open() it to change something"
            )
        if self._writer is None:
            raise DriverClosed
        return await self._writer.do(work, now)

    async def _read(self, look: Callable[[Step], T], now: datetime | None) -> T:
        if self._reader is None:
            raise DriverClosed
        return await self._reader.do(look, now)
