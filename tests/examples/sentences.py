"""The sentences of a page, for the test that none is too long."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.examples.pages import prose

_ITEM = re.compile(r"\n(?=\s*(?:[-*]|\d+\.)\s)")
_INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)


def sentences(page: str) -> Iterator[str]:
    """The sentences of a page, as they are written; a cell of a table and an item of a list end one."""
    for paragraph in re.split(r"\n\s*\n", _INDENTED.sub("", prose(page))):
        for unit in _units(paragraph):
            yield from re.split(r"(?<=[.!?])[\s*]+(?=[A-Z`*\[(])", unit.strip())


def _units(paragraph: str) -> list[str]:
    if paragraph.lstrip().startswith("|"):
        return [cell for line in paragraph.splitlines() for cell in line.strip().strip("|").split("|")]
    return _ITEM.split(paragraph)


def words_in(sentence: str) -> int:
    """How many words a reader reads: code counts as one, addresses and marks as none."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence)
    plain = re.sub(r"<[^>]+>", "", re.sub(r"`[^`]*`", "X", plain))
    return len(re.findall(r"[A-Za-z0-9][\w'’.,-]*", plain))


def plain_sentences(text: str) -> Iterator[str]:
    """The sentences of a text that is no page: a docstring, a help text."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*- )", text):
        if not paragraph.startswith("    ") and ">>>" not in paragraph:
            yield from re.split(r"(?<=[.!?])\s+(?=[A-Z`(])", paragraph.strip())
