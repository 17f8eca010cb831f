"""The simulator finds every planted bug, by the promise that it breaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taskharbor.testing.simulator import Outcome, World, plan_of
from tests.simulation.planted_bugs import BUGS, Bug

pytestmark = [
    pytest.mark.timeout(600),  # seconds of work, minutes on a busy machine
    pytest.mark.more("up to sixty worlds for each bug; they test the simulator, not the product"),
]
MOST_SEEDS = 60


def run(bug: Bug, seed: int) -> Outcome:
    make = bug.make
    world = World(
        replace(plan_of(seed), **bug.world),
        make=None if make is None else lambda clock, entropy: make(clock=clock, entropy=entropy),
        stepwise=bug.is_stepwise,
    )
    if bug.prepare is not None:
        bug.prepare(world)
    return world.run()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    seen: set[str] = set()

    for seed in range(MOST_SEEDS):
        seen |= run(bug, seed).verdict.broken
        if seen & bug.promises:
            return

    pytest.fail(
        f"{bug.name} was not found as {sorted(bug.promises)} in {MOST_SEEDS} worlds; seen: {sorted(seen)}"
    )


def test_the_list_of_bugs_is_complete() -> None:
    assert [bug.name[:5] for bug in BUGS] == [f"BUG{number:02}" for number in range(1, 37)]


def test_the_same_worlds_are_sound_without_the_bugs() -> None:
    """What a bug is found by is the bug, not the world it was put into."""
    worlds = {repr(sorted(bug.world.items())): bug.world for bug in BUGS}

    for world in worlds.values():
        outcome = World(replace(plan_of(0), **world)).run()
        assert outcome.is_sound, outcome.verdict
