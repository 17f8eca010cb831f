"""Runs: jobs whose seqs follow one another and that stand alike are one row, from its first seq to its last.

Whatever concerns one job of a run alone takes it out of its row first; the rest stays together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable

from taskharbor.drivers.sqlite.step import Step

Run = tuple[int, int]
"""Its first and its last seq."""


def runs_of(seqs: Collection[int]) -> list[Run]:
    """The same seqs, all different, as runs in ascending order."""
    first, last = min(seqs), max(seqs)
    if last - first + 1 == len(seqs):
        return [(first, last)]
    ordered = sorted(seqs)
    runs: list[Run] = []
    start = before = ordered[0]
    for seq in ordered[1:]:
        if seq != before + 1:
            runs.append((start, before))
            start = seq
        before = seq
    runs.append((start, before))
    return runs


def within(ordered: list[int], run: Run) -> list[int]:
    """Those of ascending seqs that lie in a run."""
    return ordered[bisect_left(ordered, run[0]) : bisect_left(ordered, run[1] + 1)]


def rest_of(run: Run, taken: Iterable[Run]) -> list[Run]:
    """What is left of a run without some runs within it, which are ascending."""
    start, last = run
    rest: list[Run] = []
    for first, until in taken:
        if first > start:
            rest.append((start, first - 1))
        start = until + 1
    if start <= last:
        rest.append((start, last))
    return rest


def lease_alone(step: Step, seq: int) -> None:
    """Let the lease of a running job be a row of its own."""
    _alone(step, "lease_run", "lease_split", "lease_shorten", seq)


def outcome_alone(step: Step, seq: int) -> None:
    """Let the end of a job be a row of its own."""
    _alone(step, "outcome_run", "outcome_split", "outcome_shorten", seq)


def _alone(step: Step, find: str, split: str, shorten: str, seq: int) -> None:
    first, last = step.one(find, seq=seq)
    if last > seq:
        step.run(split, run=first, at=seq + 1)
        step.run(shorten, run=first, last=seq)
    if first < seq:
        step.run(split, run=first, at=seq)
        step.run(shorten, run=first, last=seq - 1)
