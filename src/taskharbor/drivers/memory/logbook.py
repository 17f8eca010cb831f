"""The logbook of one store: cells by book, in order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from datetime import datetime

from taskharbor.model.logbook import LogEntry, LogKey


class Logbook:
    """Every cell, and the order of those of a book."""

    def __init__(self) -> None:
        self._cells: dict[LogKey, LogEntry] = {}
        self._keys: dict[str, list[LogKey]] = {}

    def write(self, entries: Sequence[LogEntry], instead_of: Sequence[LogKey]) -> None:
        for key in instead_of:
            self._drop(key)
        for entry in entries:
            if entry.key not in self._cells:
                insort(self._keys.setdefault(entry.book, []), entry.key)
            self._cells[entry.key] = entry

    def read(
        self, book: str, since: datetime, until: datetime, limit: int, newest_first: bool, now: datetime
    ) -> list[LogEntry]:
        keys = self._keys.get(book, [])
        part = keys[bisect_left(keys, LogKey(book, since)) : bisect_left(keys, LogKey(book, until))]
        cells = [self._cells[key] for key in (reversed(part) if newest_first else part)]
        return [cell for cell in cells if cell.until > now][:limit]

    def prune(self, limit: int, now: datetime) -> None:
        over = [key for key, cell in self._cells.items() if cell.until <= now]
        for key in over[:limit]:
            self._drop(key)

    def _drop(self, key: LogKey) -> None:
        if self._cells.pop(key, None) is not None:
            keys = self._keys[key.book]
            del keys[bisect_left(keys, key)]
