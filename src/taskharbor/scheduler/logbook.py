"""The leader's share of the logbook: it merges what workers wrote, and notes how full the queues are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.log_pages import each_entry
from taskharbor.drivers.log_recorder import LogRecorder
from taskharbor.drivers.messages import QueueInfo
from taskharbor.model.log_cells import (
    MAX_QUEUES,
    CauseNumbers,
    Level,
    Numbers,
    packed,
    sum_of_causes,
    sum_of_numbers,
    unpacked,
)
from taskharbor.model.log_series import MINUTE, QUARTER, floor
from taskharbor.model.logbook import (
    CAUSES,
    CAUSES_QUARTERS,
    KEPT,
    LEVELS,
    LEVELS_QUARTERS,
    NUMBERS,
    NUMBERS_QUARTERS,
    LogEntry,
)
from taskharbor.model.queue import EVERY_QUEUE
from taskharbor.scheduler.duty import Now

SETTLED = 2 * MINUTE
"""A minute that ended so long ago is written by no worker any more."""
_QUARTERS_PER_RUN = 4

Summed = Callable[[Iterable[Sequence[Any]]], list[Any]]
_BOOKS: tuple[tuple[str, str, type[Any], Summed], ...] = (
    (NUMBERS, NUMBERS_QUARTERS, Numbers, sum_of_numbers),
    (CAUSES, CAUSES_QUARTERS, CauseNumbers, sum_of_causes),
)


def merged(book: str, at: datetime, cells: Sequence[LogEntry], kind: type[Any], summed: Summed) -> LogEntry:
    """One cell out of several: of one minute, or of the minutes of a quarter."""
    rows = summed(unpacked(cell.data, kind) for cell in cells)
    return LogEntry(book=book, at=at, data=packed(rows), until=at + KEPT[book])


class MergeLog:
    """Make one cell out of those of a minute, and one out of those of a quarter of an hour.

    Without it all stays as it was written, and reading adds it up.
    """

    name = "merge-log"

    def __init__(self, driver: Driver, now: Now, *, every_seconds: float = 20.0) -> None:
        self._driver = driver
        self._now = now
        self.every_seconds = every_seconds
        self._next: dict[str, datetime] = {}  # by book: the first minute that was not merged yet

    async def run_once(self) -> int:
        if not self._driver.capabilities.logbook:
            return 0
        horizon = floor(await self._now.read() - SETTLED, MINUTE)
        return sum([await self._merge_book(*book, horizon=horizon) for book in _BOOKS])

    async def _merge_book(
        self, book: str, quarters: str, kind: type[Any], summed: Summed, *, horizon: datetime
    ) -> int:
        done = 0
        if book not in self._next:
            self._next[book] = await self._first(book, quarters, horizon)
        for _ in range(_QUARTERS_PER_RUN):
            start = self._next[book]
            quarter = floor(start, QUARTER)
            end = min(quarter + QUARTER, horizon)
            if end <= start:
                break
            done += await self._merge_minutes(book, start, end, kind, summed)
            if end == quarter + QUARTER:
                await self._write_quarter(book, quarters, quarter, kind, summed)
            self._next[book] = end
        return done

    async def _first(self, book: str, quarters: str, horizon: datetime) -> datetime:
        """The first quarter with cells that the leader before did not merge."""
        read, given = self._driver.read_log, self._now.given
        since = floor(horizon - KEPT[book], QUARTER)
        last = await read(quarters, since, horizon, limit=1, newest_first=True, now=given)
        if last:
            since = last[0].at + QUARTER
        first = await read(book, since, horizon, limit=1, now=given)
        return floor(first[0].at if first else horizon, QUARTER)

    async def _merge_minutes(
        self, book: str, start: datetime, end: datetime, kind: type[Any], summed: Summed
    ) -> int:
        by_minute: dict[datetime, list[LogEntry]] = {}
        async for cell in each_entry(self._driver, book, start, end, now=self._now.given):
            by_minute.setdefault(cell.at, []).append(cell)
        done = 0
        for at, cells in by_minute.items():
            if any(cell.by for cell in cells):
                keys = [cell.key for cell in cells]
                one = merged(book, at, cells, kind, summed)
                await self._driver.write_log([one], instead_of=keys, now=self._now.given)
                done += len(keys)
        return done

    async def _write_quarter(
        self, book: str, quarters: str, quarter: datetime, kind: type[Any], summed: Summed
    ) -> None:
        pages = each_entry(self._driver, book, quarter, quarter + QUARTER, now=self._now.given)
        cells = [cell async for cell in pages]
        if cells:
            one = merged(quarters, quarter, cells, kind, summed)
            await self._driver.write_log([one], now=self._now.given)


def levels_of(queues: Sequence[QueueInfo], now: datetime) -> list[Level]:
    """The queues as they are now; the fullest, if there are very many."""
    rows = [
        Level(
            info.queue,
            info.counts.waiting,
            info.counts.ready,
            info.counts.running,
            info.counts.failed,
            None if info.oldest_ready_at is None else max((now - info.oldest_ready_at).total_seconds(), 0.0),
        )
        for info in queues
        if info.queue != EVERY_QUEUE
    ]
    return sorted(rows, key=lambda row: (-row.waiting - row.running, row.queue))[:MAX_QUEUES]


class NoteLevels:
    """Note once a minute how many jobs wait and run in every queue, and what this scheduler counted."""

    name = "note-levels"

    def __init__(
        self, driver: Driver, now: Now, recorder: LogRecorder | None = None, *, every_seconds: float = 15.0
    ) -> None:
        self._driver = driver
        self._now = now
        self._recorder = recorder
        self._last: datetime | None = None
        self.every_seconds = every_seconds

    async def run_once(self) -> int:
        if not self._driver.capabilities.logbook:
            return 0
        await self._write_own()
        now = await self._now.read()
        minute = floor(now, MINUTE)
        if minute == self._last:
            return 0
        data = packed(levels_of(await self._driver.queues(now=self._now.given), now))
        books = [LEVELS, LEVELS_QUARTERS] if self._begins_quarter(minute) else [LEVELS]
        entries = [LogEntry(book=book, at=minute, data=data, until=minute + KEPT[book]) for book in books]
        await self._driver.write_log(entries, now=self._now.given)
        self._last = minute
        return 1

    def _begins_quarter(self, minute: datetime) -> bool:
        return self._last is None or floor(self._last, QUARTER) != floor(minute, QUARTER)

    async def _write_own(self) -> None:
        entries = self._recorder.take() if self._recorder is not None else []
        if entries:
            await self._driver.write_log(entries, now=self._now.given)
