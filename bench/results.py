"""RESULTS.md is written by the benchmarks, never by hand: one section each, with machine and commit."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
import time
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
_HEAD = (
    "# Results\n\nWritten by `make bench`; every section says where and when. Compare ratios, not machines.\n"
)

_SECTION = r"^## {}\n.*?(?=^## |\Z)"


def write_section(title: str, body: str) -> None:
    """Replace the section of this title, or add it."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else _HEAD
    section = f"## {title}\n\n{_stamp(title)}\n\n{body.strip()}\n"
    pattern = re.compile(_SECTION.format(re.escape(title)), re.MULTILINE | re.DOTALL)
    if pattern.search(text):
        text = pattern.sub(lambda _: section + "\n", text)
    else:
        text = text.rstrip() + "\n\n" + section
    RESULTS.write_text(text.rstrip() + "\n", encoding="utf-8")


def write_rows(title: str, settings: str, head: list[str], rows: list[list[str]]) -> None:
    """A section whose rows are measured at different times: those with another first cell are kept.

    Each row says in a last cell when, at which commit and at which load it was measured.
    """
    when = f"{time.strftime('%Y-%m-%d')}, commit {_commit()}, load {os.getloadavg()[0]:.1f}"
    new = {row[0]: [*row, when] for row in rows}
    there = {row[0]: row for row in _rows_of(title) if len(row) == len(head) + 1}
    body = table([*head, "measured"], list((there | new).values()))
    write_section(title, f"{settings}\n\n{body}")


def _rows_of(title: str) -> list[list[str]]:
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    section = re.search(_SECTION.format(re.escape(title)), text, re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^\| (.*) \|$", section[0] if section else "", re.MULTILINE)
    return [line.split(" | ") for line in lines[1:]]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _stamp(title: str) -> str:
    """The version of SQLite too, unless the section is about another store."""
    sqlite = "" if title.startswith(("Postgres", "Valkey")) else f"SQLite {sqlite3.sqlite_version}, "
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{sqlite}commit {_commit()}."
    )


def _commit() -> str:
    words = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=RESULTS.parent, check=False)
    return done.stdout.strip() or "unknown"
