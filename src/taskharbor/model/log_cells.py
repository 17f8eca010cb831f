"""What is in the cells of the logbook, and how cells are added up. Pure functions of bytes and rows.

    numbers.1m, numbers.15m   per queue and type: how attempts ended, and how long jobs waited and ran
    causes.1m, causes.15m     per cause and queue: how many attempts failed for it, when, and a job to look at
    levels.1m, levels.15m     per queue: how many jobs wait, run and have failed, and the wait of the oldest
    fires                     one job of a schedule

Times are in seconds. A cell is MessagePack, packed by zlib. One that a later release wrote reads as empty.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from taskharbor.model.logbook import MAX_CELL

BUCKETS = 24
BOUNDS = tuple(0.001 * 2**number for number in range(BUCKETS - 1))
"""The upper bounds of all buckets but the last, which has none. Each is twice the one before."""
MAX_PAIRS = 200
MAX_CAUSES = 100
MAX_QUEUES = 500
OTHER = "other"
_VERSION = 1


class Numbers(msgspec.Struct, array_like=True):
    """What happened to jobs of one queue and type within one step."""

    queue: str
    type: str
    completed: int = 0
    retried: int = 0
    failed: int = 0
    stalled: int = 0
    cancelled: int = 0
    wait_sum: float = 0.0
    run_sum: float = 0.0
    wait: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKETS)
    run: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKETS)

    @property
    def ended(self) -> int:
        """Jobs that are over."""
        return self.completed + self.failed + self.cancelled

    def add(self, other: Numbers) -> None:
        self.completed += other.completed
        self.retried += other.retried
        self.failed += other.failed
        self.stalled += other.stalled
        self.cancelled += other.cancelled
        self.wait_sum += other.wait_sum
        self.run_sum += other.run_sum
        self.wait = [one + more for one, more in zip(self.wait, other.wait, strict=True)]
        self.run = [one + more for one, more in zip(self.run, other.run, strict=True)]

    def waited(self, since: Sequence[datetime], claimed_at: datetime, total: int | None = None) -> None:
        """Jobs that could run since these instants were claimed. `total`: these are a sample of so many."""
        waits = [(claimed_at - instant).total_seconds() for instant in since]
        self.wait_sum += _counted(self.wait, waits, len(waits) if total is None else total)

    def ran(self, seconds: Sequence[float], total: int | None = None) -> None:
        """Handlers took so long, whatever came of it. `total`: these are a sample of so many."""
        self.run_sum += _counted(self.run, seconds, len(seconds) if total is None else total)


def _counted(buckets: list[int], seconds: Sequence[float], total: int) -> float:
    """Count these in their buckets, as `total` in all; their sum. Most batches fall into one bucket."""
    first, size = bisect_left(BOUNDS, min(seconds)), len(seconds)
    if first == bisect_left(BOUNDS, max(seconds)):
        buckets[first] += total
    else:
        for place, value in enumerate(seconds):
            buckets[bisect_left(BOUNDS, value)] += total * (place + 1) // size - total * place // size
    return sum(seconds) * total / size


class CauseNumbers(msgspec.Struct, array_like=True):
    """Attempts that failed for one cause in one queue within one step. Instants are microseconds."""

    cause: str
    queue: str
    type: str
    title: str
    frame: str | None
    failure_kind: str
    retried: int
    dead: int
    first_at: int
    last_at: int
    sample: str
    """A job that failed for it: the last one."""
    release: str = ""
    """Of the worker that saw it last."""
    first_release: str = ""
    """Of the worker that saw it first; empty in cells of older programs, which did not keep it."""

    def add(self, other: CauseNumbers) -> None:
        self.retried += other.retried
        self.dead += other.dead
        if other.first_at < self.first_at:
            self.first_at, self.first_release = other.first_at, other.first_release
        if other.last_at >= self.last_at:
            self.last_at, self.sample, self.release = other.last_at, other.sample, other.release


class Level(msgspec.Struct, array_like=True):
    """A queue as it was at one instant. `waiting` are ready, scheduled and blocked jobs."""

    queue: str
    waiting: int
    ready: int
    running: int
    failed: int
    oldest: float | None = None
    """For how many seconds the oldest ready job could have run."""


class Fire(msgspec.Struct, array_like=True):
    """A tick of a schedule that became a job. The cell is under the tick and the name of the schedule."""

    job_id: str


Row = TypeVar("Row", Numbers, CauseNumbers, Level, Fire)
_Summed = TypeVar("_Summed", Numbers, CauseNumbers)


class _Rows(msgspec.Struct, array_like=True):
    version: int
    rows: msgspec.Raw


_rows = msgspec.msgpack.Decoder(_Rows)
_decoders: dict[type, Any] = {
    kind: msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]
    for kind in (Numbers, CauseNumbers, Level, Fire)
}


def packed(rows: Sequence[Any]) -> bytes:
    """A cell of these rows. Rows that would make it too large are left out from the end."""
    kept = list(rows)
    while True:
        data = zlib.compress(msgspec.msgpack.encode((_VERSION, kept)), 1)
        if len(data) <= MAX_CELL:
            return data
        kept = kept[: len(kept) * 3 // 4]


def unpacked(data: bytes, kind: type[Row]) -> list[Row]:
    """The rows of a cell; none if this release cannot read it."""
    try:
        cell = _rows.decode(zlib.decompress(data))
        rows: list[Row] = _decoders[kind].decode(cell.rows) if cell.version == _VERSION else []
    except (zlib.error, msgspec.DecodeError):
        return []
    return rows


def sum_of_numbers(cells: Iterable[Sequence[Numbers]]) -> list[Numbers]:
    """One row per queue and type; beyond 200 of them, all others together."""
    return _sum(cells, lambda row: (row.queue, row.type), MAX_PAIRS, lambda row: Numbers(OTHER, OTHER))


def sum_of_causes(cells: Iterable[Sequence[CauseNumbers]]) -> list[CauseNumbers]:
    """One row per cause and queue; beyond 100 of them, all others together."""
    return _sum(cells, lambda row: (row.cause, row.queue), MAX_CAUSES, _other_cause)


def _other_cause(row: CauseNumbers) -> CauseNumbers:
    return CauseNumbers(
        OTHER, OTHER, OTHER, "Other causes", None, "", 0, 0, row.first_at, row.last_at, row.sample
    )


def _sum(
    cells: Iterable[Sequence[_Summed]],
    key: Callable[[_Summed], tuple[str, str]],
    most: int,
    other: Callable[[_Summed], _Summed],
) -> list[_Summed]:
    rows: dict[tuple[str, str], _Summed] = {}
    for cell in cells:
        for row in cell:
            name = key(row)
            if name not in rows and len(rows) >= most:
                name = (OTHER, OTHER)
            there = rows.get(name)
            if there is None:
                is_other = name == (OTHER, OTHER) and key(row) != name
                there = rows[name] = other(row) if is_other else msgspec.structs.replace(row)
                if not is_other:
                    continue
            there.add(row)
    return list(rows.values())
