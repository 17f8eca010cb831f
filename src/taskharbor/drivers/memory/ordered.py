"""A sorted collection in chunks: add, remove, look from either end, count up to a bound.

Chunks keep every operation close to O(log n): a binary search over the chunks, one inside a chunk,
and a short move of memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

_T = TypeVar("_T", bound=Any)
_CHUNK = 512


class Ordered(Generic[_T]):
    """Items in order, each at most once."""

    __slots__ = ("_chunks", "_lasts", "_size")

    def __init__(self) -> None:
        self._chunks: list[list[_T]] = []
        self._lasts: list[_T] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, item: _T) -> None:
        self._size += 1
        lasts = self._lasts
        if not lasts:
            self._chunks.append([item])
            lasts.append(item)
            return
        if item > lasts[-1]:  # nearly always: time and numbers grow
            at = -1
            self._chunks[-1].append(item)
            lasts[-1] = item
        else:
            at = bisect_left(lasts, item)
            insort(self._chunks[at], item)
        if len(self._chunks[at]) > 2 * _CHUNK:
            self._split(at % len(self._chunks))

    def remove(self, item: _T) -> None:
        """Take out an item that is there."""
        at = bisect_left(self._lasts, item)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, item)]
        self._size -= 1
        if not chunk:
            del self._chunks[at], self._lasts[at]
        elif self._lasts[at] == item:
            self._lasts[at] = chunk[-1]

    def first(self) -> _T | None:
        return self._chunks[0][0] if self._chunks else None

    def count_to(self, bound: Any) -> int:
        """How many items are not above `bound`."""
        at = bisect_right(self._lasts, bound)
        whole = sum(map(len, self._chunks[:at]))
        return whole + (bisect_right(self._chunks[at], bound) if at < len(self._chunks) else 0)

    def __iter__(self) -> Iterator[_T]:
        for chunk in self._chunks:
            yield from chunk

    def above(self, bound: Any) -> Iterator[_T]:
        """The items above `bound`, in order."""
        at = bisect_right(self._lasts, bound)
        if at < len(self._chunks):
            yield from self._chunks[at][bisect_right(self._chunks[at], bound) :]
            for chunk in self._chunks[at + 1 :]:
                yield from chunk

    def below(self, bound: Any) -> Iterator[_T]:
        """The items below `bound`, from the highest down."""
        at = bisect_left(self._lasts, bound)
        if at < len(self._chunks):
            yield from reversed(self._chunks[at][: bisect_left(self._chunks[at], bound)])
        for chunk in reversed(self._chunks[:at]):
            yield from reversed(chunk)

    def _split(self, at: int) -> None:
        chunk = self._chunks[at]
        self._chunks[at : at + 1] = [chunk[:_CHUNK], chunk[_CHUNK:]]
        self._lasts[at : at + 1] = [chunk[_CHUNK - 1], chunk[-1]]
