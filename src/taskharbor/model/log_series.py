"""Time series out of cells of the logbook: pure functions over rows and instants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from taskharbor.model.clock import EPOCH
from taskharbor.model.log_cells import BOUNDS, Level, Numbers

By = Literal["total", "queue", "type"]

MINUTE, QUARTER = timedelta(minutes=1), timedelta(minutes=15)
WINDOWS: dict[str, tuple[timedelta, timedelta]] = {
    "15m": (timedelta(minutes=15), MINUTE),
    "1h": (timedelta(hours=1), MINUTE),
    "6h": (timedelta(hours=6), MINUTE),
    "24h": (timedelta(hours=24), QUARTER),
    "7d": (timedelta(days=7), timedelta(hours=1)),
    "30d": (timedelta(days=30), timedelta(hours=6)),
}
"""How long each window is, and its step."""

Whole = list[int | None]
Parts = list[float | None]


class Series(msgspec.Struct, kw_only=True):
    """One line of a chart per field; None where nothing was measured, never 0 for that."""

    name: str
    arrived: Whole
    """Jobs that came in: the change of waiting and running jobs, and those that ended."""
    done: Whole
    failed: Whole
    retried: Whole
    wait_p50_s: Parts
    wait_p95_s: Parts
    run_p50_s: Parts
    run_p95_s: Parts
    waiting: Whole
    running: Whole
    oldest_s: Parts


def floor(at: datetime, step: timedelta) -> datetime:
    """The beginning of the step that an instant is in."""
    return at - (at - EPOCH) % step


def window(name: str, now: datetime) -> tuple[datetime, datetime, timedelta]:
    """Beginning, end and step of a window: whole steps, the last one still running."""
    span, step = WINDOWS[name]
    end = floor(now, step) + step
    return end - span, end, step


def percentile(buckets: Sequence[int], share: float) -> float | None:
    """About the value below which this share lies, in seconds; up to 40 % off. None without any."""
    wanted = sum(buckets) * share
    if not wanted:
        return None
    below = 0
    for number, count in enumerate(buckets):
        if count and below + count >= wanted:
            low = 0.0 if number == 0 else BOUNDS[number - 1]
            high = BOUNDS[number] if number < len(BOUNDS) else 2 * BOUNDS[-1]
            return float(low + (high - low) * (wanted - below) / count)
        below += count
    return None


def series(
    numbers: Iterable[tuple[datetime, Sequence[Numbers]]],
    levels: Iterable[tuple[datetime, Sequence[Level]]],
    since: datetime,
    until: datetime,
    step: timedelta,
    *,
    by: By = "total",
    names: Sequence[str] | None = None,
) -> list[Series]:
    """One series per name, or the total. Cells outside of the window are left out, those of a step added up.

    `levels` may begin one step after the window: the change within the last step is known then. By type there
    are no levels, and so no arrivals: a store counts queues.
    """
    count = max(int((until - since) / step), 0)
    sums = _sums(numbers, since, step, count, by)
    looks = {} if by == "type" else _looks(levels, since, step, count, by)
    wanted = list(names) if names is not None else sorted(sums.keys() | looks.keys())
    if by == "total":
        wanted = [""]
    return [_series(name, sums.get(name, {}), looks.get(name, {}), count) for name in wanted]


def _place(at: datetime, since: datetime, step: timedelta) -> int:
    return (at - since) // step


def _name(row: Numbers | Level, by: By) -> str:
    if by == "total":
        return ""
    return row.type if by == "type" and isinstance(row, Numbers) else row.queue


def _sums(
    cells: Iterable[tuple[datetime, Sequence[Numbers]]], since: datetime, step: timedelta, count: int, by: By
) -> dict[str, dict[int, Numbers]]:
    """What happened, by name and step."""
    sums: dict[str, dict[int, Numbers]] = {}
    for at, rows in cells:
        place = _place(at, since, step)
        if not 0 <= place < count:
            continue
        for row in rows:
            of_name = sums.setdefault(_name(row, by), {})
            if place not in of_name:
                of_name[place] = Numbers("", "")
            of_name[place].add(row)
    return sums


def _looks(
    cells: Iterable[tuple[datetime, Sequence[Level]]], since: datetime, step: timedelta, count: int, by: By
) -> dict[str, dict[int, Level]]:
    """The first look of every step, by name: levels are not added up over time."""
    firsts: dict[int, tuple[datetime, Sequence[Level]]] = {}
    for at, rows in cells:
        place = _place(at, since, step)
        if 0 <= place <= count and (place not in firsts or at < firsts[place][0]):
            firsts[place] = (at, rows)
    looks: dict[str, dict[int, Level]] = {}
    every = {_name(row, by) for _, rows in firsts.values() for row in rows}
    for place, (_, rows) in firsts.items():
        for name in every:
            looks.setdefault(name, {})[place] = _level([row for row in rows if _name(row, by) == name])
    return looks


def _level(rows: Sequence[Level]) -> Level:
    """Several queues as one. A queue that was not there had no jobs."""
    oldest = [row.oldest for row in rows if row.oldest is not None]
    return Level(
        "",
        sum(row.waiting for row in rows),
        sum(row.ready for row in rows),
        sum(row.running for row in rows),
        sum(row.failed for row in rows),
        max(oldest, default=None),
    )


def _series(name: str, sums: Mapping[int, Numbers], looks: Mapping[int, Level], count: int) -> Series:
    nothing = Numbers("", "")
    # A step without a cell had no jobs if something is known of it: a level, or a step before it.
    known = set(sums) | set(looks)
    first = min(known, default=count)
    rows = [sums.get(place, nothing) if place >= first else None for place in range(count)]
    levels = [looks.get(place) for place in range(count + 1)]
    return Series(
        name=name,
        arrived=[_arrived(rows[place], levels[place], levels[place + 1]) for place in range(count)],
        done=[None if row is None else row.completed for row in rows],
        failed=[None if row is None else row.failed for row in rows],
        retried=[None if row is None else row.retried for row in rows],
        wait_p50_s=[None if row is None else percentile(row.wait, 0.5) for row in rows],
        wait_p95_s=[None if row is None else percentile(row.wait, 0.95) for row in rows],
        run_p50_s=[None if row is None else percentile(row.run, 0.5) for row in rows],
        run_p95_s=[None if row is None else percentile(row.run, 0.95) for row in rows],
        waiting=[None if level is None else level.waiting for level in levels[:count]],
        running=[None if level is None else level.running for level in levels[:count]],
        oldest_s=[None if level is None else level.oldest for level in levels[:count]],
    )


def _arrived(row: Numbers | None, before: Level | None, after: Level | None) -> int | None:
    if row is None or before is None or after is None:
        return None
    change = after.waiting + after.running - before.waiting - before.running
    return max(change + row.ended, 0)
