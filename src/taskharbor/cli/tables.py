"""Tables: rich ones on a terminal, plain aligned columns everywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, and how its cell follows from an item as it stands in the JSON."""

    title: str
    cell: Callable[[Mapping[str, Any]], object]
    is_number: bool = False
    raw: Callable[[Mapping[str, Any]], object] | None = None
    """What a program wants to read instead: an instant, a number of seconds, the whole text."""

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
    """The same table for a terminal. Cells are Text, so that nothing in them is taken as markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        # An id is there to be copied, and a number to be read: only words may be cut.
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=36 if column.title == "ID" else None,
        )
    for item in items:
        cells = (column.text(item) for column in columns)
        table.add_row(*(Text(cell, style=_STATE_STYLES.get(cell, "")) for cell in cells))
    return table


def write_csv(stream: TextIO, columns: Sequence[Column], items: Sequence[Mapping[str, Any]]) -> None:
    import csv

    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([column.title.lower() for column in columns])
    for item in items:
        writer.writerow([column.plain(item) for column in columns])
