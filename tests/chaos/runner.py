"""Run many cases: one store beside the other, whatever needs the machine for itself at the end.

Cases of one store follow each other, because some of them kill its server. Most of a case is waiting for
leases, so stores go side by side; a case that then kept every promise and was only late is run once more,
alone, and that run is the one that counts for its bounds in seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.chaos.case import CASES, Case, Outcome, run_case
from tests.chaos.kept import commit
from tests.chaos.report import describe
from tests.chaos.stores import Stores
from tests.chaos.world import Size

Turn = tuple[Case, str]


@dataclass
class Run:
    """One run of the cases, as far as it has come."""

    size: Size
    seed: int | None = None
    beside: bool = True
    """Whether stores go side by side."""
    outcomes: list[Outcome] = field(default_factory=list)
    """Those of a run before this one that is being continued come first."""
    minutes_before: float = 0.0
    most_minutes: float | None = None
    """No case begins after so many."""
    turns: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self.began) / 60

    @property
    def is_out_of_time(self) -> bool:
        return self.most_minutes is not None and self.minutes >= self.most_minutes

    def sorted_outcomes(self) -> list[Outcome]:
        return sorted(self.outcomes, key=lambda one: (one.case.id, list(one.case.stores).index(one.store)))


def turns_of(cases: Iterable[str], stores: Sequence[str]) -> list[Turn]:
    return [(CASES[number], store) for number in cases for store in CASES[number].stores if store in stores]


async def run_all(run: Run, turns: Sequence[Turn], after_each: Callable[[Run], None]) -> None:
    """Everything, to the end: a case that fails stops nobody."""
    run.turns = len(run.outcomes) + len(turns)
    with Stores() as stores:
        together = [turn for turn in turns if run.beside and not turn[0].is_alone]
        lanes: dict[str, list[Turn]] = {}
        for one, store in together:
            lanes.setdefault(store, []).append((one, store))
        await asyncio.gather(*(_lane(run, stores, lane, after_each) for lane in lanes.values()))
        await _lane(run, stores, [turn for turn in turns if turn not in together], after_each)
        if run.beside:
            await _again(run, stores, after_each)


async def _lane(run: Run, stores: Stores, lane: Sequence[Turn], after_each: Callable[[Run], None]) -> None:
    for one, store in lane:
        if run.is_out_of_time:
            return
        outcome = await _one(run, stores, one, store)
        run.outcomes.append(outcome)
        _print(f"[{len(run.outcomes)}/{run.turns}, {run.minutes:.1f} min] {describe(outcome)}")
        after_each(run)


async def _again(run: Run, stores: Stores, after_each: Callable[[Run], None]) -> None:
    for place, first in enumerate(run.outcomes):
        if first.is_only_late and not first.case.is_alone and not run.is_out_of_time:
            _print(f"     {first.case.id} on {first.store} was late beside others; once more, alone\n")
            second = await _one(run, stores, first.case, first.store, first.seed)
            second.facts.append(
                f"late when run beside other cases ({'; '.join(first.late)}), so run again alone"
            )
            run.outcomes[place] = second
            _print(f"[again, {run.minutes:.1f} min] {describe(second)}")
            after_each(run)


async def _one(run: Run, stores: Stores, one: Case, store: str, seed: int | None = None) -> Outcome:
    if seed is None:
        seed = run.seed if run.seed is not None else time.time_ns() // 1000 % 1_000_000
    _print(f"     {one.id} on {store} begins (seed {seed}): {one.title}\n")
    outcome = await run_case(one, stores, store, run.size, seed)
    outcome.commit = commit()
    return outcome


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
