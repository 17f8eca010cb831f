"""The statements of this driver, with the table names of one namespace."""

from __future__ import annotations

import re
from functools import cache

from taskharbor.drivers.sqlfiles import SqlFiles

_FILES = SqlFiles("taskharbor.drivers.sqlite")
_TABLE = re.compile(r"\bth_")

# How many jobs go into one statement. Each statement is one hand-over of the interpreter, each size one
# statement to prepare; a batch is cut into the largest that fit.
SIZES = (500, 100, 10, 1)


class Statements(dict[str, str]):
    """Statement by name; those that end in a row of values also by name and number of rows."""

    def __init__(self, prefix: str) -> None:
        super().__init__({name: in_namespace(_FILES[name], prefix) for name in _FILES.names()})
        self._sized = {
            name: {size: _repeated(self[name], size) for size in SIZES}
            for name in ("enqueue_body", "settle_result")
        }

    def sized(self, name: str, size: int) -> str:
        return self._sized[name][size]


@cache
def statements_for(prefix: str) -> Statements:
    return Statements(prefix)


def in_namespace(text: str, prefix: str) -> str:
    return text if prefix == "th_" else _TABLE.sub(prefix, text)


def _repeated(text: str, size: int) -> str:
    """The statement with the last row of values written `size` times."""
    head, row, tail = re.fullmatch(r"(.*values )(\((?:\?, )*\?\))(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    return head + ", ".join([row] * size) + tail
