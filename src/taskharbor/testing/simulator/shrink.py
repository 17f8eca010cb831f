"""The shrinker: takes faults, features, workers and jobs away while the same promise stays broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from taskharbor.testing.simulator.plan import Plan
from taskharbor.testing.simulator.world import Outcome, World

Run = Callable[[Plan], Outcome]
_MOST_RUNS = 200


class _Search:
    def __init__(self, outcome: Outcome, run: Run) -> None:
        self.best = outcome
        self._run = run
        self._wanted = outcome.broken
        self._runs = 0

    def accepts(self, plan: Plan) -> bool:
        """Whether this smaller world still fails the same way; then it is the best one so far."""
        if self._runs >= _MOST_RUNS:
            return False
        self._runs += 1
        outcome = self._run(plan)
        is_still_broken = bool(outcome.broken & self._wanted)
        if is_still_broken:
            self.best = outcome
        return is_still_broken


def shrink(outcome: Outcome, run: Run | None = None) -> Outcome:
    """The smallest world found that breaks one of the same promises."""
    search = _Search(outcome, run or (lambda plan: World(plan).run()))
    _take_features_away(search)
    _take_faults_away(search)
    for plan in _smaller_sizes(search):
        search.accepts(plan)
    return search.best


def _take_features_away(search: _Search) -> None:
    for name in sorted(search.best.plan.features):
        search.accepts(replace(search.best.plan, features=search.best.plan.features - {name}))
    for name in sorted(search.best.plan.faults):
        search.accepts(replace(search.best.plan, faults=search.best.plan.faults - {name}))


def _take_faults_away(search: _Search) -> None:
    """Delta debugging: halves first, then smaller and smaller parts, then one by one."""
    kept = set(range(len(search.best.faults)))
    size = max(len(kept) // 2, 1)
    while kept:
        for start in range(0, len(kept), size):
            without = kept - set(sorted(kept)[start : start + size])
            if search.accepts(replace(search.best.plan, kept_faults=frozenset(without))):
                kept = without
                break
        else:
            if size == 1:
                return
            size = max(size // 2, 1)


def _smaller_sizes(search: _Search) -> Iterator[Plan]:
    for field, least in (("schedulers", 0), ("producers", 1), ("workers", 1), ("slots", 1), ("queues", 1)):
        while (value := getattr(search.best.plan, field)) > least:
            before = search.best
            yield replace(search.best.plan, **{field: value - 1})
            if search.best is before:
                break
    jobs = search.best.plan.jobs
    while jobs > 1:
        jobs //= 2
        before = search.best
        yield replace(search.best.plan, jobs=jobs)
        if search.best is before:
            return
