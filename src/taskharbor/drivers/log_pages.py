"""Reading a long range of the logbook, one page after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

from taskharbor.drivers.contract import Driver
from taskharbor.model.logbook import LogEntry, LogKey

_MICROSECOND = timedelta(microseconds=1)


async def each_entry(
    driver: Driver,
    book: str,
    since: datetime,
    until: datetime,
    *,
    page: int = 1000,
    newest_first: bool = False,
    now: datetime | None = None,
) -> AsyncIterator[LogEntry]:
    """Every cell of a range, each once. Of one instant, cells beyond a whole page are left out."""
    known: set[LogKey] = set()  # of the instant where the last page ended
    while True:
        part = await driver.read_log(book, since, until, limit=page, newest_first=newest_first, now=now)
        fresh = [entry for entry in part if entry.key not in known]
        for entry in fresh:
            yield entry
        if len(part) < page:
            return
        last = part[-1].at
        known = {entry.key for entry in part if entry.at == last}
        if newest_first:
            until = last + _MICROSECOND if fresh else last
        else:
            since = last if fresh else last + _MICROSECOND
