"""The logbook of one store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskharbor.drivers.postgres.connections import Handle
from taskharbor.model.logbook import LogEntry, LogKey


class Logbook(Handle):
    """Cells that workers, schedulers and servers leave."""

    async def do_write_log(
        self, entries: Sequence[LogEntry], instead_of: Sequence[LogKey], now: datetime | None
    ) -> None:
        await self._connections.rows(
            self._sql["write_log"],
            [entry.book for entry in entries],
            [entry.at for entry in entries],
            [entry.by for entry in entries],
            [entry.until for entry in entries],
            [entry.data for entry in entries],
            [key.book for key in instead_of],
            [key.at for key in instead_of],
            [key.by for key in instead_of],
        )

    async def do_read_log(
        self,
        book: str,
        since: datetime,
        until: datetime,
        limit: int,
        newest_first: bool,
        now: datetime | None,
    ) -> list[LogEntry]:
        statement = self._sql.directed("read_log", newest_first)
        rows = await self._connections.rows(statement, book, since, until, limit, now, writes=False)
        return [LogEntry(book=book, at=at, by=by, until=end, data=data) for at, by, end, data in rows]
