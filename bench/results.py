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
ORDER = (
    # one job, or one call: where others are faster
    "One by one beside the bare statement",
    "HTTP beside its own parts",
    *(f"One option changed, {store}" for store in ("sqlite", "postgres", "redis", "http")),
    "SQLite at FULL beside its bare statements",
    "Postgres beside its bare statements",
    "Valkey beside its bare scripts",
    "What the worker costs per job",
    *(f"Before and after, {store}" for store in ("sqlite", "postgres", "redis")),
    # whole queues
    *(f"{store} beside its peers" for store in ("Valkey", "Postgres", "SQLite")),
    "Postgres beside its peers, 1,000,000 jobs waiting",
    *(f"{store} beside its peers, plain functions" for store in ("Valkey", "SQLite")),
    *(
        f"Keyed and prioritised jobs beside other queues, {store}"
        for store in ("Postgres", "Valkey", "SQLite")
    ),
    # workers
    "Workers with no options, threads and processes",
    "Defaults beside nothing claimed ahead",
    "Pick-up by a worker of many queues",
    "An idle worker",
    "Postgres: idle workers",
    "Metrics: cost of a no-op drain",
    "Slots kept busy: jobs of 3 s",
    "Second runs for stragglers",
    # when something dies, or callers mean harm
    "A server under hostile callers",
    "The job of a killed worker",
    "Callbacks while workers are killed",
    "Callbacks while workers are killed, other queues",
    # large stores
    "Looking at many jobs",
    "Claims beside jobs that cannot run",
    "Postgres under a snapshot that stays open",
    "A Cluster beside one node",
    # the rest
    *(f"Workflows, {store}" for store in ("sqlite", "postgres", "redis", "cluster", "http")),
    "Workflows beside other queues",
    "Plain jobs before and with workflows",
    "Dashboard: viewers",
    "Dashboard: browser",
    "Dashboard: cost of the logbook",
)
"""The sections, grouped by question; in each group first what is lost. Another title goes to the end."""
_HEAD = (
    "# Results\n\nWritten by `make bench`; every section says where and when. Compare ratios, not machines.\n"
)


def write_section(title: str, body: str) -> None:
    """Replace the section of this title, or add it, and put all in order."""
    sections = read_sections()
    sections[title] = f"{_stamp(title)}\n\n{body.strip()}"
    write_sections(sections)


def read_sections() -> dict[str, str]:
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)[1:]
    return {title: body.strip() for title, body in zip(parts[::2], parts[1::2], strict=True)}


def write_sections(sections: dict[str, str]) -> None:
    places = {title: place for place, title in enumerate(ORDER)}
    titles = sorted(sections, key=lambda title: places.get(title, len(places)))
    text = "\n".join(f"## {title}\n\n{sections[title]}\n" for title in titles)
    RESULTS.write_text(f"{_HEAD}\n{text}", encoding="utf-8")


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
    lines = re.findall(r"^\| (.*) \|$", read_sections().get(title, ""), re.MULTILINE)
    return [line.split(" | ") for line in lines[1:]]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows)])


def _cell(text: str) -> str:
    """In one line, and without what ends a cell."""
    return " ".join(text.split()).replace("|", "/")


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
