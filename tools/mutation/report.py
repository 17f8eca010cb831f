"""The results of the mutants: for the terminal, and for docs/operations/mutation-results.md."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mutation.changes import ROOT, Mutant
from mutation.suites import Suite

PAGE = ROOT / "docs" / "operations" / "mutation-results.md"
WANTED_PERCENT = 85


@dataclass(frozen=True)
class Account:
    """Every mutant there is, those that were chosen, and the verdict of each that was run."""

    everything: dict[Suite, list[Mutant]]
    chosen: set[Mutant]
    verdicts: dict[Mutant, str]
    seed: int

    @property
    def run(self) -> list[Mutant]:
        return [
            mutant
            for mutant in self.ordered(self.chosen)
            if self.verdicts[mutant].startswith(("killed", "survived"))
        ]

    @property
    def survivors(self) -> list[Mutant]:
        return [mutant for mutant in self.run if not self.verdicts[mutant].startswith("killed")]

    @property
    def open_survivors(self) -> list[Mutant]:
        """Survivors without a reason."""
        return [mutant for mutant in self.survivors if reason_for(mutant) is None]

    @property
    def is_good(self) -> bool:
        is_complete = len(self.run) == len(self.chosen)
        no_critical = not any(mutant.is_critical for mutant in self.open_survivors)
        return is_complete and no_critical and percent(self, self.run) >= WANTED_PERCENT

    def ordered(self, mutants: Iterable[Mutant]) -> list[Mutant]:
        return sorted(mutants, key=lambda mutant: (mutant.path, mutant.line, mutant.place))


def percent(account: Account, mutants: list[Mutant]) -> float:
    """How many of these were killed, of all that were run; equivalent ones count as survivors."""
    killed = sum(account.verdicts[mutant].startswith("killed") for mutant in mutants)
    return 100 * killed / max(len(mutants), 1)


def summary(account: Account) -> str:
    """A few lines for the terminal."""
    run, critical = account.run, [mutant for mutant in account.run if mutant.is_critical]
    lines = [f"SURVIVED {mutant.name}  ({account.verdicts[mutant]})" for mutant in account.open_survivors]
    lines += [
        f"{len(run)} of {len(account.chosen)} chosen mutants were run: {percent(account, run):.1f} % killed, "
        f"{len(account.survivors) - len(account.open_survivors)} equivalent, "
        f"{len(account.open_survivors)} open",
        f"comparisons of tokens and ends: {len(critical)} of {_count_critical(account)} run, "
        f"{percent(account, critical):.1f} % killed",
        *(f"STALE REASON {entry['path']}: `{entry['before']}`" for entry in _stale(account)),
    ]
    return "\n".join(lines)


def write(account: Account) -> None:
    PAGE.write_text(_page(account), "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


def reason_for(mutant: Mutant) -> str | None:
    """Why no test can distinguish this mutant from the original, if a reason is written."""
    entry = _EXPLAINED.get(_written(mutant))
    return None if entry is None else str(entry["reason"])


def _written(mutant: Mutant) -> tuple[str, ...]:
    """As equivalent.toml names it: without its line, which moves."""
    return mutant.path, mutant.function[0] if mutant.function else "", mutant.before, mutant.after


def _stale(account: Account) -> list[dict[str, str]]:
    there = {_written(mutant) for mutants in account.everything.values() for mutant in mutants}
    return [entry for written, entry in _EXPLAINED.items() if written not in there]


_EXPLAINED = {
    (entry["path"], entry["function"], entry["before"], entry["after"]): entry
    for entry in tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text("utf-8"))["mutant"]
}


# ------------------------------------------------------------------ the page


def _page(account: Account) -> str:
    critical = [mutant for mutant in account.run if mutant.is_critical]
    others = [mutant for mutant in account.run if not mutant.is_critical]
    return f"""# Mutation testing: results

Written by `make mutants ARGS=--write`; see [CONTRIBUTING.md](../../CONTRIBUTING.md) for how it works.

A mutant is the program with one comparison, condition or number changed. It is killed when a test fails,
breaks or no longer ends. Chosen are all comparisons of a token or of the end of a lease, a role, a worker
or a key, in Python, SQL and Lua, and of all other changes a sample that the seed draws. A verdict holds for
the text of the file it was given on: what was chosen and not run has none, or its file has changed since.

- date: {datetime.now(UTC):%Y-%m-%d}, commit {_commit()}, seed {account.seed}
- mutants in all: {sum(map(len, account.everything.values()))}
- chosen: {len(account.chosen)}, run: {len(account.run)}, killed: {_killed(account, account.run)}
  ({percent(account, account.run):.1f} %, equivalent ones counted as not killed)
- survivors: {len(account.survivors)}, not explained: {len(account.open_survivors)}; the others are equivalent
- comparisons of tokens and ends: {len(critical)} of {_count_critical(account)} run,
  {_killed(account, critical)} killed
- the sample: {len(others)} of {len(account.chosen) - _count_critical(account)} run,
  {_killed(account, others)} killed ({percent(account, others):.1f} %)

## By module

| file | mutants | chosen | run | killed |
|---|---:|---:|---:|---:|
{_table(account)}

## Survivors

{_survivors(account)}
"""


def _count_critical(account: Account) -> int:
    return sum(mutant.is_critical for mutant in account.chosen)


def _killed(account: Account, mutants: list[Mutant]) -> int:
    return sum(account.verdicts[mutant].startswith("killed") for mutant in mutants)


def _table(account: Account) -> str:
    rows = []
    for suite, mutants in account.everything.items():
        rows.append(_row(account, f"**{suite.name}**", mutants))
        for path in suite.paths:
            of_file = [mutant for mutant in mutants if mutant.path == path]
            if account.chosen.intersection(of_file):
                rows.append(_row(account, f"`{path}`", of_file))
    return "\n".join(rows)


def _row(account: Account, name: str, mutants: list[Mutant]) -> str:
    chosen = account.chosen.intersection(mutants)
    run = [mutant for mutant in account.run if mutant in chosen]
    return f"| {name} | {len(mutants)} | {len(chosen)} | {len(run)} | {_killed(account, run)} |"


def _survivors(account: Account) -> str:
    if not account.survivors:
        return "None."
    lines = []
    for mutant in account.survivors:
        kind = "**token or end**, " if mutant.is_critical else ""
        verdict = account.verdicts[mutant].removeprefix("survived").lstrip(": ")
        why = (
            f"equivalent: {reason}"
            if (reason := reason_for(mutant))
            else f"not explained ({verdict or 'all tests'})"
        )
        lines.append(f"- {mutant.name}: {kind}{why}")
    return "\n".join(lines)


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--", "src") else ""
    return f"{git('rev-parse', '--short', 'HEAD')}{changed}"
