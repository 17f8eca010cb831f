"""Reading the logbook: cells added up, and kept while they cannot change any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.log_pages import each_entry
from taskharbor.model.clock import SystemClock
from taskharbor.model.log_cells import (
    CauseNumbers,
    Fire,
    Level,
    Numbers,
    sum_of_causes,
    sum_of_numbers,
    unpacked,
)
from taskharbor.model.log_series import MINUTE, QUARTER, By, Series, floor, series, window
from taskharbor.model.logbook import (
    CAUSES,
    CAUSES_QUARTERS,
    FIRES,
    KEPT,
    LEVELS,
    LEVELS_QUARTERS,
    NUMBERS,
    NUMBERS_QUARTERS,
)

FINAL = 4 * MINUTE
"""A minute that began so long ago is written by no worker any more; merging it changes no sum."""

Row = TypeVar("Row", bound=Numbers | CauseNumbers | Level)
Cells = list[tuple[datetime, list[Row]]]


class Book(Generic[Row]):
    """One book: what was read of it once and is final is not read again."""

    def __init__(
        self,
        driver: Driver,
        book: str,
        kind: type[Row],
        summed: Callable[[Iterable[Sequence[Row]]], list[Row]] | None,
        step: timedelta,
    ) -> None:
        self._driver = driver
        self._book = book
        self._kind: Any = kind
        self._summed = summed
        self._step = step
        self._kept: dict[datetime, list[Row]] = {}
        self._known: tuple[datetime, datetime] | None = None  # all of this range is kept

    async def read(self, since: datetime, until: datetime, now: datetime) -> Cells[Row]:
        """Every step of the range with its rows, oldest first."""
        final = min(max(floor(now - FINAL - self._step + MINUTE, self._step), since), until)
        if self._known is None or not self._known[0] <= since <= self._known[1]:
            self._kept, self._known = {}, (since, since)
        kept, begin = self._kept, self._known[1]
        fresh = await self._fetch(begin, until, now)
        self._keep({at: rows for at, rows in fresh.items() if at < final}, begin, final)
        self._forget(now)
        found = {**kept, **fresh}
        return [(at, found[at]) for at in sorted(found) if since <= at < until]

    def _keep(self, rows: dict[datetime, list[Row]], begin: datetime, final: datetime) -> None:
        """Keep what was read of a range. Another read may have changed the known one meanwhile: then the two
        may not adjoin, and keeping both would make a gap look known."""
        if self._known is not None and self._known[0] <= begin <= self._known[1]:
            self._kept |= rows
            self._known = (self._known[0], max(self._known[1], final))

    async def _fetch(self, since: datetime, until: datetime, now: datetime) -> dict[datetime, list[Row]]:
        cells: dict[datetime, list[list[Row]]] = {}
        given = _given(self._driver, now)
        async for entry in each_entry(self._driver, self._book, since, until, now=given):
            cells.setdefault(entry.at, []).append(unpacked(entry.data, self._kind))
        return {
            at: self._summed(parts) if self._summed is not None else parts[-1] for at, parts in cells.items()
        }

    def _forget(self, now: datetime) -> None:
        oldest = now - KEPT[self._book]
        if self._known is not None and self._known[0] < oldest - self._step:
            self._kept = {at: rows for at, rows in self._kept.items() if at >= oldest}
            self._known = (max(self._known[0], oldest), max(self._known[1], oldest))


class LogReader:
    """Numbers, causes and levels of a harbor, in minutes or in quarters of an hour. One per server."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._numbers = _pair(driver, (NUMBERS, NUMBERS_QUARTERS), Numbers, sum_of_numbers)
        self._causes = _pair(driver, (CAUSES, CAUSES_QUARTERS), CauseNumbers, sum_of_causes)
        self._levels = _pair(driver, (LEVELS, LEVELS_QUARTERS), Level, None)

    async def numbers(
        self, since: datetime, until: datetime, now: datetime, step: timedelta = MINUTE
    ) -> Cells[Numbers]:
        """What happened, step by step; where quarters are asked for, the last hour comes in minutes."""
        return await _both(self._numbers, since, until, now, step)

    async def causes(
        self, since: datetime, until: datetime, now: datetime, step: timedelta = MINUTE
    ) -> Cells[CauseNumbers]:
        """Why attempts failed, in the same steps."""
        return await _both(self._causes, since, until, now, step)

    async def levels(
        self, since: datetime, until: datetime, now: datetime, step: timedelta = MINUTE
    ) -> Cells[Level]:
        """How full the queues were, in the same steps."""
        return await _both(self._levels, since, until, now, step)

    async def series(
        self, window_name: str, now: datetime, *, by: By = "total", names: Sequence[str] | None = None
    ) -> tuple[datetime, datetime, timedelta, list[Series]]:
        """Beginning, end and step of a window, and its series. KeyError: there is no such window.

        Raises:
            KeyError: no window has this name.
            InvalidArgument: the store keeps no logbook.
        """
        since, until, step = window(window_name, now)
        numbers = await self.numbers(since, until, now, step)
        levels = [] if by == "type" else await self.levels(since, until + step, now, step)
        return since, until, step, series(numbers, levels, since, until, step, by=by, names=names)

    async def fires(self, now: datetime, *, limit: int = 1000) -> dict[str, list[tuple[datetime, str]]]:
        """The last runs of every schedule, newest first: tick and job id."""
        found: dict[str, list[tuple[datetime, str]]] = {}
        since, until, given = now - KEPT[FIRES], now + timedelta(days=1), _given(self._driver, now)
        entries = await self._driver.read_log(FIRES, since, until, limit=limit, newest_first=True, now=given)
        for entry in entries:
            for fire in unpacked(entry.data, Fire):
                found.setdefault(entry.by, []).append((entry.at, fire.job_id))
        return found


def _given(driver: Driver, now: datetime) -> datetime | None:
    """What to pass to a verb as `now`: in real time the store's own clock decides, as everywhere."""
    return None if isinstance(driver.clock, SystemClock) else now


def _pair(driver: Driver, books: tuple[str, str], kind: Any, summed: Any) -> tuple[Book[Any], Book[Any]]:
    return (
        Book(driver, books[0], kind, summed, MINUTE),
        Book(driver, books[1], kind, summed, QUARTER),
    )


async def _both(
    books: tuple[Book[Row], Book[Row]], since: datetime, until: datetime, now: datetime, step: timedelta
) -> Cells[Row]:
    """Minutes, or quarters with minutes behind the last of them that is there."""
    minutes, quarters = books
    if step < QUARTER:
        return await minutes.read(since, until, now)
    cells = await quarters.read(since, until, now)
    behind = cells[-1][0] + QUARTER if cells else since
    behind = max(behind, floor(now - KEPT[NUMBERS], QUARTER))
    return cells + await minutes.read(behind, until, now)
