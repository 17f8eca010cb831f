"""What a run has seen so far, in a file of its own: one that was broken off can be continued.

The file lies in `build/`, which belongs to nobody's history. Each outcome carries the commit it was seen
at, so a page put together from several runs says which row is of which.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from pathlib import Path
from subprocess import run
from typing import Any

import msgspec

from tests.chaos.case import CASES, Outcome
from tests.chaos.verdict import Findings
from tests.chaos.world import Size

ROOT = Path(__file__).parents[2]
FILE = ROOT / "build" / "chaos.json"


class _Row(msgspec.Struct, kw_only=True):
    """An outcome without its case, which is code."""

    case: str
    store: str
    seed: int
    seconds: float
    findings: Findings
    injections: list[str]
    recoveries: list[tuple[str, float]]
    facts: list[str]
    late: list[str]
    load: float
    error: str
    not_here: str
    commit: str


class Seen(msgspec.Struct, kw_only=True):
    """Everything of the runs that belong together."""

    seconds: float
    """The size of the cases: outcomes of another size are not comparable."""
    minutes: float
    rows: list[_Row]

    def outcomes(self) -> list[Outcome]:
        """Of the cases that there still are."""
        return [_outcome(row) for row in self.rows if row.case in CASES]


def keep(outcomes: list[Outcome], size: Size, minutes: float, file: Path = FILE) -> None:
    """Replace the file in one step: an interrupted run leaves the one before."""
    rows = [_Row(**(_fields_of(one) | {"case": one.case.id})) for one in outcomes]
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(Seen(seconds=size.seconds, minutes=minutes, rows=rows)))
    new.replace(file)


def seen_before(size: Size, file: Path = FILE) -> Seen:
    """What runs of this size have left; nothing, if there was none."""
    nothing = Seen(seconds=size.seconds, minutes=0.0, rows=[])
    if not file.exists():
        return nothing
    seen = msgspec.json.decode(file.read_bytes(), type=Seen)
    return seen if seen.seconds == size.seconds else nothing


def _fields_of(one: Outcome) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in fields(one)}


def _outcome(row: _Row) -> Outcome:
    return Outcome(**(msgspec.structs.asdict(row) | {"case": CASES[row.case]}))


@cache
def commit() -> str:
    """What is being run: a tree with changes of its own is called that."""
    changed = _git("status", "--porcelain", "--", "src", "tests", "pyproject.toml")
    return (_git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


def _git(*words: str) -> str:
    done = run(["git", *words], capture_output=True, text=True, cwd=ROOT, check=False)
    return done.stdout.strip()
