"""Tables: fitted to the width of a terminal, plain aligned columns everywhere else.

Nothing is cut off on a terminal. A table that is too wide is made narrower step by step: ids are shortened to
their last digits, long texts move to lines below the row, empty or less important columns are left out, and
what is still too wide is wrapped inside its column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from taskharbor.cli.terminal import one_line

_STATE_STYLES = {
    "ready": "cyan",
    "scheduled": "blue",
    "blocked": "magenta",
    "running": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "bright_black",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
}
_GAP = 2
_NARROWEST = 12
_SHORT = (8, 12)
_BREAKS = re.compile(r"[._/,:;=-]")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, and how to make its cell from a JSON item."""

    title: str
    cell: Callable[[Mapping[str, Any]], object]
    is_number: bool = False
    raw: Callable[[Mapping[str, Any]], object] | None = None
    """What a program wants to read instead: an instant, a number of seconds, the whole text."""
    is_id: bool = False
    """A job's id: its last digits are enough where there is no room for all."""
    is_below: bool = False
    """Goes on lines of its own below the row where there is no room beside it."""
    spare: int = 0
    """Which columns may be left out where there is no room: 1 first, then 2; those with 0 stay."""
    narrow: str = ""
    """A shorter title for where there is no room."""

    def text(self, item: Mapping[str, Any]) -> str:
        value = self.cell(item)
        return "-" if value is None or value == "" else one_line(str(value))

    def plain(self, item: Mapping[str, Any]) -> str:
        """The cell for programs: empty when there is nothing, an instant as RFC 3339."""
        value = (self.raw or self.cell)(item)
        return "" if value is None else one_line(str(value))


def plain_table(columns: Sequence[Column], items: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """The lines of a table: a header, then a line per item; the last column is never padded."""
    rows = [[column.text(item) for column in columns] for item in items]
    widths = [
        max(len(column.title), *(len(row[at]) for row in rows)) if rows else len(column.title)
        for at, column in enumerate(columns)
    ]
    yield _line([column.title for column in columns], columns, widths)
    for row in rows:
        yield _line(row, columns, widths)


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded = (
        cell.rjust(width) if column.is_number else cell.ljust(width)
        for cell, column, width in zip(cells, columns, widths, strict=True)
    )
    return "  ".join(padded).rstrip()


def rich_table(columns: Sequence[Column], items: Sequence[Mapping[str, Any]]) -> Any:
    """A table for screens that are drawn again and again: one line per item, cut where it has to be.

    Cells are Text, so that nothing in them is taken as markup.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        justify = "right" if column.is_number else "left"
        table.add_column(column.title, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for item in items:
        cells = (column.text(item) for column in columns)
        table.add_row(*(Text(cell, style=_STATE_STYLES.get(cell, "")) for cell in cells))
    return table


def fitted_table(
    columns: Sequence[Column], items: Sequence[Mapping[str, Any]], width: int
) -> Iterator[list[tuple[str, str]]]:
    """The lines of a table that is at most `width` wide, each as pieces of text with their style."""
    layout = _fitted(columns, items, width)
    yield [(_joined([(strip, strip.title) for strip in layout.beside]), "bold")]
    for row in range(len(items)):
        yield from _row_lines(layout, row, width)


@dataclass(slots=True)
class _Strip:
    """One column with its texts, as wide as it may be."""

    column: Column
    title: str
    texts: list[str]
    width: int = field(init=False)

    @classmethod
    def of(cls, column: Column, items: Sequence[Mapping[str, Any]]) -> _Strip:
        return cls(column, column.title, [column.text(item) for item in items])

    def __post_init__(self) -> None:
        self.measure()

    def measure(self) -> None:
        self.width = max(_cells(text) for text in (self.title, *self.texts))

    @property
    def is_empty(self) -> bool:
        return all(text in ("-", "0") for text in self.texts)

    def least(self, narrowest: int) -> int:
        """As narrow as it may be wrapped; numbers and ids are never broken."""
        is_whole = self.column.is_number or self.column.is_id
        return self.width if is_whole else min(self.width, max(_cells(self.title), narrowest))


def _fitted(columns: Sequence[Column], items: Sequence[Mapping[str, Any]], width: int) -> _Layout:
    """The layout that fits with the fewest steps."""
    short, below, filled = _Layout.shorten, _Layout.put_below, _Layout.leave_out_empty
    for steps in ((), (short,), (below,), (below, short)):
        layout = _Layout.after(columns, items, steps)
        if layout.taken <= width:
            return layout
    layout = _Layout.after(columns, items, (below, short, filled))
    layout.leave_out_spare(width)
    layout.wrap(width)
    return layout


class _Layout:
    """Which columns are side by side, how wide each is, and which go below the row."""

    def __init__(self, strips: list[_Strip]) -> None:
        self.beside = strips
        self.below: list[_Strip] = []

    @classmethod
    def after(
        cls,
        columns: Sequence[Column],
        items: Sequence[Mapping[str, Any]],
        steps: Iterable[Callable[[_Layout], None]],
    ) -> _Layout:
        layout = cls([_Strip.of(column, items) for column in columns])
        for step in steps:
            step(layout)
        return layout

    @property
    def taken(self) -> int:
        return sum(strip.width for strip in self.beside) + _GAP * (len(self.beside) - 1)

    def shorten(self) -> None:
        for strip in self.beside:
            strip.title = strip.column.narrow or strip.title
            if strip.column.is_id:
                strip.texts = short_ids(strip.texts)
            strip.measure()

    def put_below(self) -> None:
        self.below = [strip for strip in self.beside if strip.column.is_below]
        self.beside = [strip for strip in self.beside if not strip.column.is_below]

    def leave_out_empty(self) -> None:
        first, *others = self.beside
        self.beside = [first, *(strip for strip in others if not strip.is_empty)]

    def leave_out_spare(self, width: int) -> None:
        for strip in sorted(self.beside, key=lambda strip: strip.column.spare):
            if strip.column.spare and self.taken > width:
                self.beside.remove(strip)

    def wrap(self, width: int) -> None:
        """Take from the widest, one character at a time, until it fits or nothing can be taken."""
        for narrowest in (_NARROWEST, _NARROWEST // 2):
            while self.taken > width:
                wrapping = [strip for strip in self.beside if strip.width > strip.least(narrowest)]
                if not wrapping:
                    break
                max(wrapping, key=lambda strip: strip.width).width -= 1


def _row_lines(layout: _Layout, row: int, width: int) -> Iterator[list[tuple[str, str]]]:
    cells = [wrapped(strip.texts[row], strip.width) for strip in layout.beside]
    for at in range(max(len(lines) for lines in cells)):
        pieces: list[tuple[str, str]] = []
        for strip, lines in zip(layout.beside, cells, strict=True):
            text = lines[at] if at < len(lines) else ""
            style = _STATE_STYLES.get(strip.texts[row], "")
            pieces += [(_padded(strip, text), style), (" " * _GAP, "")]
        yield _stripped(pieces)
    for line in _below_lines(layout, row, max(width - _GAP, _NARROWEST)):
        yield [(" " * _GAP + line, "dim")]


def _below_lines(layout: _Layout, row: int, width: int) -> list[str]:
    """What goes below a row, as many parts on one line as fit."""
    lines: list[str] = []
    for strip in layout.below:
        if strip.texts[row] == "-":
            continue
        part = f"{strip.title.lower()}: {strip.texts[row]}"
        if lines and _cells(lines[-1]) + _GAP + _cells(part) <= width:
            lines[-1] += " " * _GAP + part
        else:
            lines += wrapped(part, width)
    return lines


def _joined(cells: Sequence[tuple[_Strip, str]]) -> str:
    return (" " * _GAP).join(_padded(strip, text) for strip, text in cells).rstrip()


def _padded(strip: _Strip, text: str) -> str:
    space = " " * (strip.width - _cells(text))
    return space + text if strip.column.is_number else text + space


def _stripped(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without the spaces at the end of a line."""
    while pieces and not pieces[-1][0].strip():
        pieces.pop()
    return [*pieces[:-1], (pieces[-1][0].rstrip(), pieces[-1][1])] if pieces else []


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most `width`: broken at spaces, a long word behind a sign or anywhere."""
    lines = [""]
    for word in text.split(" "):
        rest = word
        joined = f"{lines[-1]} {rest}" if lines[-1] else rest
        if _cells(joined) <= width:
            lines[-1] = joined
            continue
        while _cells(rest) > width:
            head = _head(rest, width)
            lines.append(head)
            rest = rest[len(head) :]
        lines.append(rest)
    return [line for line in lines if line] or [""]


def _head(word: str, width: int) -> str:
    """The first part of a word that is too long; at least one character, however narrow it is."""
    fits = 1
    while fits < len(word) and _cells(word[: fits + 1]) <= width:
        fits += 1
    signs = [found.end() for found in _BREAKS.finditer(word, 0, fits)]
    return word[: signs[-1]] if signs and signs[-1] > fits // 2 else word[:fits]


def _cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def short_ids(ids: Sequence[str]) -> list[str]:
    """The last digits of ids, as many as needed to distinguish them: those are random."""
    known = {one for one in ids if one != "-"}
    for digits in _SHORT:
        if len({one[-digits:] for one in known}) == len(known):
            return [one[-digits:] for one in ids]
    return list(ids)


def write_csv(stream: TextIO, columns: Sequence[Column], items: Sequence[Mapping[str, Any]]) -> None:
    import csv

    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([column.title.lower() for column in columns])
    for item in items:
        writer.writerow([_no_formula(column.plain(item)) for column in columns])


def _no_formula(cell: str) -> str:
    """A text that a spreadsheet would take for a formula, marked as a text; numbers stay numbers."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) and not _NUMBER.fullmatch(cell) else cell


_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
