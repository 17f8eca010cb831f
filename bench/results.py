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


def write_section(title: str, body: str) -> None:
    """Replace the section of this title, or add it."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else _HEAD
    section = f"## {title}\n\n{_stamp(title)}\n\n{body.strip()}\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if pattern.search(text):
        text = pattern.sub(lambda _: section + "\n", text)
    else:
        text = text.rstrip() + "\n\n" + section
    RESULTS.write_text(text.rstrip() + "\n", encoding="utf-8")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _stamp(title: str) -> str:
    """The version of SQLite too, unless the section is about another store."""
    sqlite = "" if title.startswith(("Postgres", "Valkey")) else f"SQLite {sqlite3.sqlite_version}, "
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=RESULTS.parent,
        check=False,
    ).stdout.strip()
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{sqlite}commit {commit or 'unknown'}."
    )
