"""What a run of the chaos cases says: on the terminal, and on the results page."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.chaos.case import CASES, Outcome
from tests.chaos.kept import commit
from tests.chaos.world import Size

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "chaos-results.md"
_SHOWN = 5  # duplicates and problems listed one by one


def describe(outcome: Outcome) -> str:
    """Everything about one case, for the terminal."""
    found = outcome.findings
    verdict = "ok  " if outcome.is_good else "----" if outcome.not_here else "FAIL"
    lines = [
        f"{verdict} {outcome.case.id} on {outcome.store}: {outcome.case.title} (seed {outcome.seed}, "
        f"{outcome.seconds:.1f} s)",
        f"     {found.jobs} jobs, {found.runs} runs, {len(outcome.injections)} injections: "
        f"{_summary(outcome.injections)}",
        f"     {found.expired_leases} leases expired, {found.releases} handed back, "
        f"{len(found.duplicates)} duplicate runs, {found.events} events checked",
    ]
    lines += [
        f"     duplicate: job {one.job} ran again as {one.fence} because the lease {one.expired_fence} "
        f"of {one.expired_worker} had expired"
        for one in found.duplicates[:_SHOWN]
    ]
    if len(found.duplicates) > _SHOWN:
        lines.append(f"     ... and {len(found.duplicates) - _SHOWN} more, each with its expired lease")
    lines += [f"     {what}: {_spread(times)}" for what, times in _by_name(outcome.recoveries).items()]
    lines += [f"     {fact}" for fact in outcome.facts]
    lines += [f"     LATE {text} (load {outcome.load:.1f})" for text in outcome.late]
    lines += [f"     BROKEN {problem}" for problem in found.problems[:_SHOWN]]
    if len(found.problems) > _SHOWN:
        lines.append(f"     ... and {len(found.problems) - _SHOWN} more")
    if outcome.not_here:
        lines.append(f"     not run: {outcome.not_here}")
    if outcome.error:
        lines += [f"     {line}" for line in outcome.error.splitlines()]
    return "\n".join(lines) + "\n"


def write_page(outcomes: Sequence[Outcome], size: Size, *, planned: int, minutes: float) -> None:
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(outcomes, size, planned=planned, minutes=minutes), encoding="utf-8")


def page(outcomes: Sequence[Outcome], size: Size, *, planned: int, minutes: float) -> str:
    head = (
        "# Chaos results\n\n"
        "Written by `make chaos`; never by hand. Real worker processes on real stores: SQLite in a file "
        "with `synchronous=FULL`, Postgres with fsync, Valkey with an append-only file flushed at every "
        "write, and a TaskHarbor server over HTTP. What each case must show besides its own line, on every "
        "store: no acknowledged job lost, "
        "none invented, no two leases of a job at once, exact counts, no write accepted from an expired "
        "lease, and no run twice without an expired lease that explains it. Bounds in seconds are apart: "
        "they are promised for a machine that does nothing else, and `load` says whether it did.\n\n"
        f"{_stamp(outcomes)}; {minutes:.0f} minutes, stores side by side. Each case loads its store for "
        f"about {size.seconds:g} s, with leases of {size.lease:g} s unless it says otherwise. "
        f"{_totals(outcomes, planned)}\n\n"
    )
    return (
        head + _table(outcomes) + _troubles(outcomes) + _recoveries(outcomes) + _facts(outcomes) + _replay()
    )


def _totals(outcomes: Sequence[Outcome], planned: int) -> str:
    passed, broken = sum(one.is_good for one in outcomes), sum(one.is_broken for one in outcomes)
    late, away = sum(one.is_only_late for one in outcomes), sum(bool(one.not_here) for one in outcomes)
    line = f"**{passed} passed, {broken} failed, {late} late"
    line += f", {away} could not be run on this machine" if away else ""
    if left := planned - len(outcomes):
        line += f"; {left} of {planned} were still to come when this page was written"
    return line + ".**"


def _troubles(outcomes: Iterable[Outcome]) -> str:
    """What went wrong, in its own words."""
    lines = [
        f"- {one.case.id} on {one.store}, seed {one.seed}: {_first_line(text)}"
        for one in outcomes
        for text in (*([one.error] if one.error else []), *one.findings.problems[:_SHOWN], *one.late)
    ]
    lines += [
        f"- {one.case.id} on {one.store} was not run: {one.not_here}" for one in outcomes if one.not_here
    ]
    return "\n## What went wrong\n\n" + "\n".join(lines) + "\n" if lines else ""


def _first_line(text: str) -> str:
    """Of an error; of a traceback the last line, which says what it was."""
    lines = text.strip().splitlines()
    return lines[-1] if text.startswith("Traceback") else lines[0]


def _table(outcomes: Iterable[Outcome]) -> str:
    rows = [
        "| case | what is done | store | seed | jobs | runs | faults | expired | duplicates | promises "
        "| in time | load | commit |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        found = one.findings
        duplicates = f"{len(found.duplicates)}, all explained" if found.duplicates else "0"
        verdict = "not run" if one.not_here else "**broken**" if one.is_broken else "kept"
        in_time = "" if one.not_here else "**no**" if one.late else "yes"
        rows.append(
            f"| {one.case.id} | {one.case.title} | {one.store} | {one.seed} | {found.jobs:,} | "
            f"{found.runs:,} | {len(one.injections)} | {found.expired_leases} | {duplicates} | {verdict} | "
            f"{in_time} | {one.load:.1f} | {one.commit} |"
        )
    return "\n".join(rows) + "\n"


def _recoveries(outcomes: Iterable[Outcome]) -> str:
    rows = [
        f"| {one.case.id} | {one.store} | {what} | {len(times)} | {sorted(times)[len(times) // 2]:.2f} | "
        f"{max(times):.2f} |"
        for one in outcomes
        for what, times in _by_name(one.recoveries).items()
    ]
    head = ["", "## Recovery times", "", "| case | store | what | times | median, s | longest, s |"]
    return "\n".join([*head, "|---|---|---|---|---|---|", *rows]) + "\n"


def _facts(outcomes: Iterable[Outcome]) -> str:
    lines = [f"- {one.case.id} on {one.store}: {fact}." for one in outcomes for fact in one.facts]
    return "\n## Also seen\n\n" + "\n".join(lines) + "\n" if lines else ""


def _replay() -> str:
    return (
        "\n## Run one again\n\n"
        "`python -m tests.chaos --case C34 --store postgres --seed 7` draws the same faults and pauses from "
        "the seed; what the operating system and the store make of them is their own. "
        f"There are {len(CASES)} cases here; those about single processes, poolers, failing writes and cut "
        "power are ordinary tests, listed in [guarantees](guarantees.md).\n"
    )


def _summary(injections: Sequence[str]) -> str:
    counts: dict[str, int] = {}
    for what in injections:
        plain = " ".join("…" if word.isdigit() else word for word in what.split())
        counts[plain] = counts.get(plain, 0) + 1
    return ", ".join(f"{count} × {what}" for what, count in counts.items()) or "none"


def _by_name(recoveries: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    for what, took in recoveries:
        times.setdefault(what, []).append(took)
    return times


def _spread(times: Sequence[float]) -> str:
    if len(times) == 1:
        return f"{times[0]:.2f} s"
    return f"{len(times)} times, median {sorted(times)[len(times) // 2]:.2f} s, longest {max(times):.2f} s"


def _stamp(outcomes: Iterable[Outcome]) -> str:
    """When, where, and of what."""
    commits = sorted({one.commit for one in outcomes} or {commit()})
    version = (
        f"commit {commits[0]}" if len(commits) == 1 else f"commits {', '.join(commits)}: see the last column"
    )
    if any(name.endswith("+") for name in commits):
        version += " (+: with changes that are in no commit)"
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python {platform.python_version()}, {version}"
    )
