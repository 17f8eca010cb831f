"""Which worker is slow: how long its jobs take, beside the same tasks on other workers. A pure function.

The average that a worker reports says little about its speed: it may simply have got the longer jobs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from taskharbor.model.log_cells import Numbers

FEWEST_RUNS = 10
"""Fewer runs of tasks that others ran too say nothing about a worker, nor do tasks that ran less there."""


class _Runs:
    """How often something ran, and how long in all."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    def add(self, row: Numbers) -> None:
        self.count += sum(row.run)
        self.seconds += row.run_sum


def times_slower(cells: Iterable[tuple[str, Sequence[Numbers]]]) -> dict[str, float]:
    """Per worker: how many times as long its runs took as runs of the same tasks on other workers.

    `cells` are those of single workers, each with the id of its writer. Workers that cannot be compared
    are left out.
    """
    tasks: dict[tuple[str, str], dict[str, _Runs]] = defaultdict(lambda: defaultdict(_Runs))
    for worker, rows in cells:
        for row in rows:
            tasks[row.queue, row.type][worker].add(row)
    took: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for by_worker in tasks.values():
        count = sum(runs.count for runs in by_worker.values())
        seconds = sum(runs.seconds for runs in by_worker.values())
        for worker, runs in by_worker.items():
            others = count - runs.count
            if others >= FEWEST_RUNS and runs.count:
                usual = max(seconds - runs.seconds, 0.0) / others
                took[worker].append((runs.count, runs.seconds, runs.count * usual))
    return {worker: ratio for worker, parts in took.items() if (ratio := _ratio(parts)) is not None}


def _ratio(parts: Sequence[tuple[int, float, float]]) -> float | None:
    """Own seconds over those expected; None for too few runs, or runs without any time."""
    count, own, expected = (sum(column) for column in zip(*parts, strict=True))
    return own / expected if count >= FEWEST_RUNS and expected > 0 else None
