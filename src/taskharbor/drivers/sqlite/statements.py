"""The statements of this driver, with the table names of one namespace."""

from __future__ import annotations

import re
from functools import cache

from taskharbor.drivers.sqlfiles import SqlBlocks

_FILES = SqlBlocks("taskharbor.drivers.sqlite")
_TABLE = re.compile(r"\bth_")

# How many jobs go into one statement. Each statement is one hand-over of the interpreter, each size one
# statement to prepare; a batch is cut into the largest that fit.
SIZES = (500, 100, 10, 1)
_SIZED = ("enqueue_find_idempotency", "settle_results")
SHARED = ("queue", "type", "lane", "priority", "options", "run_at", "key", "idempotency_key")
"""The columns of a body that jobs of one call may share."""

_MOST_MERGED = 100  # parts of one compound select: SQLite allows 500

# Statements with a gap, by the name that fills it.
_VARIANTS = {
    "get": ("get", {"match": "j.id", "payload": "j.payload", "result": "r.result"}),
    "get_by_seq": ("get", {"match": "j.seq", "payload": "j.payload", "result": "r.result"}),
    "look": ("get", {"match": "j.id", "payload": "x''", "result": "null"}),
    "look_by_seq": ("get", {"match": "j.seq", "payload": "x''", "result": "null"}),
    "find": ("find", {"order": "asc"}),
    "find_newest": ("find", {"order": "desc"}),
    "find_blocks": ("find_blocks", {"among": "queue = :queue and", "within": ">=", "order": "asc"}),
    "find_blocks_newest": ("find_blocks", {"among": "queue = :queue and", "within": "<=", "order": "desc"}),
    "find_blocks_anywhere": ("find_blocks", {"among": "", "within": ">=", "order": "asc"}),
    "find_blocks_newest_anywhere": ("find_blocks", {"among": "", "within": "<=", "order": "desc"}),
}


class Statements(dict[str, str]):
    """Statement by name; those with a row of values also by name and number of rows."""

    def __init__(self, prefix: str) -> None:
        texts = {name: _FILES[name] for name in _FILES.names()}
        texts |= {name: texts[base].format(**gaps) for name, (base, gaps) in _VARIANTS.items()}
        super().__init__({name: in_namespace(text, prefix) for name, text in texts.items()})
        self._sized = {name: {size: _repeated(self[name], size) for size in SIZES} for name in _SIZED}
        self._picks: dict[int, str] = {}
        self._bodies: dict[tuple[int, int], str] = {}

    def pick(self, types: int) -> str:
        """The statement `reserve_pick` for so many types. SQLite merges their lines as it reads them."""
        if types not in self._picks:
            lines = [self["reserve_line"].format(type=f":type_{number}") for number in range(types)]
            while len(lines) > _MOST_MERGED:
                starts = range(0, len(lines), _MOST_MERGED)
                parts = [_merged(lines[start : start + _MOST_MERGED]) for start in starts]
                lines = [f"select * from ({part})" for part in parts]  # noqa: S608 - our own text
            self._picks[types] = self["reserve_pick"].format(lines=_merged(lines))
        return self._picks[types]

    def bodies(self, own: int, size: int) -> str:
        """The statement `enqueue_bodies` for jobs that differ in the columns of these bits of SHARED."""
        if (own, size) not in self._bodies:
            differ = [name for place, name in enumerate(SHARED) if own >> place & 1]
            shared = [name for name in SHARED if name not in differ]
            row = _row(3 + len(differ))
            self._bodies[own, size] = self["enqueue_bodies"].format(
                shared="".join(f", {name}" for name in shared),
                own="".join(f", {name}" for name in differ),
                places="".join(f", column{place}" for place in range(4, 4 + len(differ))),
                bound=_row(2 + len(shared)),
                row=", ".join([row] * size),
            )
        return self._bodies[own, size]

    def sized(self, name: str, size: int) -> str:
        return self._sized[name][size]


def _row(width: int) -> str:
    return f"({', '.join(['?'] * width)})"


def _merged(lines: list[str]) -> str:
    return " union all ".join(lines) + " order by rank, at, seq limit :limit"


@cache
def statements_for(prefix: str) -> Statements:
    return Statements(prefix)


def in_namespace(text: str, prefix: str) -> str:
    return text if prefix == "th_" else _TABLE.sub(prefix, text)


def _repeated(text: str, size: int) -> str:
    """The statement with the last row of values written `size` times."""
    head, row, tail = re.fullmatch(r"(.*values )(\((?:\?, )*\?\))(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    return head + ", ".join([row] * size) + tail
