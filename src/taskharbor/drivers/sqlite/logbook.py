"""The logbook of one file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from taskharbor.drivers.sqlite.step import Handle, Step
from taskharbor.model.clock import instant, micros
from taskharbor.model.logbook import LogEntry, LogKey


class Logbook(Handle):
    async def do_write_log(
        self, entries: Sequence[LogEntry], instead_of: Sequence[LogKey], now: datetime | None
    ) -> None:
        def work(step: Step) -> None:
            for key in instead_of:
                step.execute("log_delete", book=key.book, at=micros(key.at), by=key.by)
            for entry in entries:
                step.execute(
                    "log_write",
                    book=entry.book,
                    at=micros(entry.at),
                    by=entry.by,
                    until=micros(entry.until),
                    data=entry.data,
                )

        await self._write(work, now)

    async def do_read_log(
        self,
        book: str,
        since: datetime,
        until: datetime,
        limit: int,
        newest_first: bool,
        now: datetime | None,
    ) -> list[LogEntry]:
        def look(step: Step) -> list[LogEntry]:
            rows = step.fetch_all(
                "log_read_newest" if newest_first else "log_read",
                book=book,
                since=micros(since),
                until=micros(until),
                now=step.us,
                limit=limit,
            )
            return [
                LogEntry(book=book, at=instant(at), by=by, until=instant(end), data=data)
                for at, by, end, data in rows
            ]

        return await self._read(look, now)
