"""SeriesReader: the charts of the dashboard, out of the logbook, with as little work as possible.

    cells ──► LogReader: kept while they cannot change ──► points: kept per step ──► answers: for two seconds

A step that is over never changes, so its points (percentiles, too) are worked out once for each set of queues
that callers may see. A request then reads and adds up only the last minutes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeVar

from taskharbor.drivers.contract import Driver
from taskharbor.model.clock import Clock
from taskharbor.model.log_cells import Level, Numbers
from taskharbor.model.log_series import WINDOWS, By, Series, series, window
from taskharbor.observe.logbook import FINAL, Cells, LogReader
from taskharbor.web.feed import Audience

KEPT_SECONDS = 2.0
_MOST_ANSWERS = 64
_MOST_CACHES = 48
_MOST_NAMES = 200
_MOST_ROWS_AT_ONCE = 2000
"""More rows are added up in a thread, so that the event loop goes on."""
TOTAL = "total"
_FIELDS = tuple(name for name in Series.__struct_fields__ if name != "name")
_COUNTED = ("done", "failed", "retried")
"""Fields that are 0, and not unknown, in a step without cells after one with some."""

WindowName = Literal["15m", "1h", "6h", "24h", "7d", "30d"]
Point = tuple[Any, ...]
Points = dict[str, Point]
"""One step: the values of `_FIELDS` for each name."""
Row = TypeVar("Row", Numbers, Level)


class SeriesAnswer(NamedTuple):
    since: datetime
    until: datetime
    step: timedelta
    series: list[Series]


class SeriesReader:
    """The series of one server."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._log = LogReader(driver)
        self._clock = clock
        self._reading = asyncio.Lock()
        self._caches: OrderedDict[tuple[Audience, timedelta, By], dict[datetime, Points]] = OrderedDict()
        self._answers: OrderedDict[object, tuple[float, SeriesAnswer]] = OrderedDict()

    async def read(
        self,
        name: WindowName,
        now: datetime,
        *,
        by: By = "total",
        names: Sequence[str] | None = None,
        audience: Audience = None,
    ) -> SeriesAnswer:
        """The series of a window that ends now, of the queues of this audience."""
        key = (name, by, None if names is None else tuple(names), audience)
        async with self._reading:
            known = self._answers.get(key)
            if known is not None and self._clock.monotonic() < known[0] + KEPT_SECONDS:
                return known[1]
            answer = await self._read(name, now, by, names, audience)
            _keep(self._answers, key, (self._clock.monotonic(), answer), _MOST_ANSWERS)
            return answer

    async def _read(
        self, name: WindowName, now: datetime, by: By, names: Sequence[str] | None, audience: Audience
    ) -> SeriesAnswer:
        since, until, step = window(name, now)
        cache = self._cache((audience, step, by), until, step)
        starts = [since + number * step for number in range((until - since) // step)]
        first = next((start for start in starts if start not in cache), until)
        points = dict(cache)
        if first < until:
            fresh = await self._points(first, until, step, now, by, audience)
            points |= fresh
            cache |= {start: found for start, found in fresh.items() if start + step + FINAL <= now}
        rows = [points.get(start, {}) for start in starts]
        wanted = _names(rows) if names is None else list(dict.fromkeys(names))
        if by == "total":
            wanted = [""]
        return SeriesAnswer(since, until, step, [joined(name, rows) for name in wanted[:_MOST_NAMES]])

    async def _points(
        self, since: datetime, until: datetime, step: timedelta, now: datetime, by: By, audience: Audience
    ) -> dict[datetime, Points]:
        numbers = visible(await self._log.numbers(since, until, now, step), audience)
        levels: Cells[Level] = []
        if by != "type":
            levels = visible(await self._log.levels(since, until + step, now, step), audience)

        def work() -> dict[datetime, Points]:
            return _points(series(numbers, levels, since, until, step, by=by), since, step)

        size = sum(len(rows) for _, rows in numbers)
        return work() if size <= _MOST_ROWS_AT_ONCE else await asyncio.to_thread(work)

    def _cache(
        self, key: tuple[Audience, timedelta, By], until: datetime, step: timedelta
    ) -> dict[datetime, Points]:
        """The steps that are over, without those that no window reaches any more."""
        cache = self._caches.get(key, {})
        oldest = until - max(span for span, one in WINDOWS.values() if one == step)
        for start in [start for start in cache if start < oldest]:
            del cache[start]
        _keep(self._caches, key, cache, _MOST_CACHES)
        return cache


def visible(cells: Cells[Row], audience: Audience) -> Cells[Row]:
    """Cells with the rows of these queues only."""
    if audience is None:
        return cells
    return [(at, [row for row in rows if row.queue in audience]) for at, rows in cells]


def _points(found: Sequence[Series], since: datetime, step: timedelta) -> dict[datetime, Points]:
    """Series cut into steps; steps about which nothing is known have no point."""
    points: dict[datetime, Points] = {}
    count = len(found[0].done) if found else 0
    for place in range(count):
        row = points[since + place * step] = {}
        for one in found:
            point = tuple(getattr(one, field)[place] for field in _FIELDS)
            if any(value is not None for value in point):
                row[one.name] = point
    return points


def joined(name: str, rows: Sequence[Points]) -> Series:
    """The steps of one name as a series."""
    nothing = (None,) * len(_FIELDS)
    points = [row.get(name, nothing) for row in rows]
    first = next((place for place, row in enumerate(rows) if name in row), len(rows))
    lines: dict[str, list[Any]] = {}
    for number, field in enumerate(_FIELDS):
        line = [point[number] for point in points]
        if field in _COUNTED:
            line = [0 if value is None and place > first else value for place, value in enumerate(line)]
        lines[field] = line
    return Series(name=name or TOTAL, **lines)


def _names(rows: Sequence[Points]) -> list[str]:
    return sorted({name for row in rows for name in row})


Key = TypeVar("Key")
Value = TypeVar("Value")


def _keep(kept: OrderedDict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Keep this; the one that was not used for longest goes."""
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)
