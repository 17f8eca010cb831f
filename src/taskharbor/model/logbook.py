"""The logbook: cells of bytes under (book, instant, writer), until a given time.

A store keeps and returns them and never decodes `data`. What is in them: observe/logbook.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec

from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import MAX_BATCH, check_instant, check_name, check_text
from taskharbor.model.clock import utc

NUMBERS, NUMBERS_QUARTERS = "numbers.1m", "numbers.15m"
CAUSES, CAUSES_QUARTERS = "causes.1m", "causes.15m"
LEVELS, LEVELS_QUARTERS = "levels.1m", "levels.15m"
FIRES = "fires"
AUDIT = "audit"
CAUSE_STATUS = "causes.status"
RELEASES = "releases"
OF_PEOPLE = frozenset({AUDIT, CAUSE_STATUS})
"""Books about what people did. Workers have no business in them."""

KEPT = {
    NUMBERS: timedelta(hours=24),
    CAUSES: timedelta(hours=24),
    LEVELS: timedelta(hours=24),
    NUMBERS_QUARTERS: timedelta(days=30),
    CAUSES_QUARTERS: timedelta(days=30),
    LEVELS_QUARTERS: timedelta(days=30),
    FIRES: timedelta(days=7),
    AUDIT: timedelta(days=90),
    RELEASES: timedelta(days=30),
}
"""How long the cells of a book are kept."""

MAX_CELL = 64 * 1024
MAX_ENTRIES = 100
"""Entries of one write. Cells that they replace may be more: `MAX_BATCH`."""


class LogKey(msgspec.Struct, frozen=True, order=True):
    """What a cell is found by."""

    book: str
    at: datetime
    by: str = ""


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the logbook."""

    book: str
    at: datetime
    """The beginning of its step, or the instant."""
    by: str = ""
    """The writer: a worker id, a request id; empty for a merged cell."""
    data: bytes
    until: datetime
    """From then on it is not read any more, and `prune` forgets it."""

    @property
    def key(self) -> LogKey:
        return LogKey(self.book, self.at, self.by)


def check_log(entries: Sequence[LogEntry], instead_of: Sequence[LogKey]) -> None:
    if len(entries) > MAX_ENTRIES:
        raise InvalidArgument(f"{len(entries)} entries in one call; {MAX_ENTRIES} are allowed")
    if len(instead_of) > MAX_BATCH:
        raise InvalidArgument(f"{len(instead_of)} cells to replace; {MAX_BATCH} are allowed")
    for key in (*(entry.key for entry in entries), *instead_of):
        check_name(key.book, "book")
        check_instant(key.at, "at")
        check_text(key.by, "by")
    for entry in entries:
        check_instant(entry.until, "until")
        if not isinstance(entry.data, bytes) or len(entry.data) > MAX_CELL:
            raise InvalidArgument(f"the data of an entry must be up to {MAX_CELL} bytes")


def distinct(
    entries: Iterable[LogEntry], instead_of: Iterable[LogKey]
) -> tuple[list[LogEntry], list[LogKey]]:
    """What a write changes, each cell once and in order: the last entry of a key counts, and an entry wins.

    Instants are in UTC.
    """
    written = {
        (key := LogKey(entry.book, utc(entry.at), entry.by)): msgspec.structs.replace(
            entry, at=key.at, until=utc(entry.until)
        )
        for entry in entries
    }
    gone = {LogKey(key.book, utc(key.at), key.by) for key in instead_of} - written.keys()
    return [written[key] for key in sorted(written)], sorted(gone)
