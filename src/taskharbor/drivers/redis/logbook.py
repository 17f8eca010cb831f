"""The logbook: a hash of cells per book and instant, and the instants of a book in a sorted set."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from taskharbor.drivers.redis.encoding import now_arg
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.primary import Primary
from taskharbor.model.clock import instant, micros
from taskharbor.model.logbook import LogEntry, LogKey

_UNTIL = struct.Struct(">Q")  # in front of the data of a cell


class Logbook:
    """The verbs of the logbook. On a cluster it is in the harbor's slot."""

    primary: Primary
    keys: Keys

    async def do_write_log(
        self, entries: Sequence[LogEntry], instead_of: Sequence[LogKey], now: datetime | None
    ) -> None:
        numbers: dict[str, int] = {self.keys.log_ends: 1}
        # A given clock may be years away from the server's, which would forget cells at once.
        arguments: list[Any] = ["1" if now is None else "", len(instead_of)]
        for key in instead_of:
            arguments += self._named(key, numbers)
        for entry in entries:
            until = micros(entry.until)
            arguments += (*self._named(entry.key, numbers), until, _UNTIL.pack(until) + entry.data)
        await self.primary.run("write_log", list(numbers), *arguments)

    def _named(self, key: LogKey, numbers: dict[str, int]) -> list[Any]:
        at = micros(key.at)
        keys = (self.keys.log_instants(key.book), self.keys.log_cells(key.book, at))
        return [*(numbers.setdefault(name, len(numbers) + 1) for name in keys), key.book, at, key.by]

    async def do_read_log(
        self,
        book: str,
        since: datetime,
        until: datetime,
        limit: int,
        newest_first: bool,
        now: datetime | None,
    ) -> list[LogEntry]:
        reply = await self.primary.run(
            "read_log",
            [self.keys.log_instants(book)],
            now_arg(now),
            micros(since),
            micros(until),
            limit,
            "1" if newest_first else "",
            writes=False,
        )
        entries = [_entry(book, *parts) for parts in reply]
        entries.sort(key=lambda entry: entry.key, reverse=newest_first)
        return entries[:limit]

    async def prune_log(self, limit: int, now: datetime | None) -> None:
        await self.primary.run("prune_log", [self.keys.log_ends], now_arg(now), limit)


def _entry(book: str, at: bytes, by: bytes, stored: bytes) -> LogEntry:
    (until,) = _UNTIL.unpack_from(stored)
    return LogEntry(
        book=book, at=instant(int(at)), by=by.decode(), until=instant(until), data=stored[_UNTIL.size :]
    )
