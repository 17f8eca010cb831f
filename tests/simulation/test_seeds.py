"""Worlds from seeds: whatever goes wrong in them, every promise is kept.

`TASKHARBOR_SEED=1000 make test ARGS=tests/simulation` looks at other worlds than CI does.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from taskharbor.testing.simulator import Outcome, Plan, plan_of, simulate
from taskharbor.testing.simulator.plan import STEP_BACK, rude_plan_of
from taskharbor.testing.simulator.points import POINTS

pytestmark = pytest.mark.timeout(600)  # seconds of work, minutes on a busy machine
FIRST = int(os.environ.get("TASKHARBOR_SEED", "0"))
FEW_CALLS, MANY_CALLS = 5_000, 100_000
"""Calls of one test. CI makes a million in all: 4 + 6 times many in memory, and some on SQLite."""
LONG_SEEDS = 6000

# (store, seed) of every world that ever showed a bug, with what it was.
KEPT = {
    ("memory", 159): "the heartbeat asked for the lost lease of an ended job twenty times per interval",
    ("memory", 7): "wake-ups of several queues went out in the order of a set",
}


def run(plan: Plan) -> Outcome:
    outcome = simulate(plan)
    again = f"python -m taskharbor.testing.simulator --seed {plan.seed} --store {plan.store} --shrink"
    again += " --rude-workers" if plan.rude_workers else ""
    assert outcome.is_sound, f"{outcome.verdict}\n{outcome.errors}\nto see it: {again}"
    return outcome


def run_until(calls: int, first: int, plan_of_seed: Callable[[int], Plan]) -> None:
    """Worlds of one seed after the other, until so many calls were made."""
    made = 0
    for seed in itertools.count(first):
        made += run(plan_of_seed(seed)).calls
        if made >= calls:
            return


def shares(count: int) -> list[Any]:
    """Where to start: a small share of the worlds in `make test`, `count` large ones in `make test-more`."""
    more = pytest.mark.more("a hundred thousand simulated calls")
    large = [pytest.param(MANY_CALLS, FIRST + 1000 * number, marks=more) for number in range(count)]
    return [pytest.param(FEW_CALLS, FIRST + 1000 * count), *large]


@pytest.mark.parametrize(("calls", "first"), shares(4))
def test_every_promise_holds_in_memory(calls: int, first: int) -> None:
    run_until(calls, first, plan_of)


@pytest.mark.parametrize(("calls", "first"), shares(2))
def test_every_promise_holds_on_sqlite(calls: int, first: int) -> None:
    run_until(calls // 4, first, lambda seed: plan_of(seed, "sqlite"))


@pytest.mark.parametrize(("calls", "first"), shares(6))
def test_every_promise_holds_among_rude_workers(calls: int, first: int) -> None:
    """They settle twice, extend what is over, sweep at any moment, and forget what they hold."""
    run_until(calls, first, rude_plan_of)


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5, 6])
def test_what_needs_no_clock_holds_while_that_of_the_store_steps_back(seed: int) -> None:
    """Nothing is lost, invented, revived or stuck; who came first is not judged in such a world."""
    plan = plan_of(FIRST + seed)

    outcome = run(replace(plan, faults=plan.faults | {STEP_BACK}))

    assert any(STEP_BACK in fault for fault in outcome.faults)


@pytest.mark.parametrize(("store", "seed"), sorted(KEPT))
def test_what_was_found_once_stays_mended(store: str, seed: int) -> None:
    run(plan_of(seed, store))


def test_a_quarter_of_the_worlds_is_calm_and_runs_nothing_twice() -> None:
    calm = [plan for seed in range(400) if (plan := plan_of(seed)).is_calm]
    assert 60 <= len(calm) <= 140

    for plan in calm[:5]:
        assert run(plan).verdict.duplicates == {}


@pytest.mark.more("up to sixty worlds")
def test_every_named_point_is_met() -> None:
    """In worlds where processes die at every turn, each point is where one of them died."""
    fired: Counter[str] = Counter()
    for seed in range(60):
        plan = plan_of(seed)
        eager = replace(plan, faults=plan.faults | {"points"}, schedulers=2, point_rate=0.05)
        fired.update(run(replace(eager, features=eager.features | {"schedules", "restarts"})).points)
        if fired.keys() >= set(POINTS):
            return
    assert set(POINTS) - fired.keys() == set()


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", [1_000_000 + FIRST + start for start in range(0, LONG_SEEDS, 500)])
def test_every_promise_holds_for_thousands_of_seeds(first: int) -> None:
    for seed in range(first, first + 500):
        run(plan_of(seed))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", [1_000_000 + FIRST + start for start in range(0, 200, 50)])
def test_every_promise_holds_among_rude_workers_for_hundreds_of_seeds(first: int) -> None:
    for seed in range(first, first + 50):
        run(rude_plan_of(seed))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("month", range(12))
def test_every_promise_holds_for_a_simulated_year(month: int) -> None:
    """A month of a quiet harbor: long leases, rare jobs, and some trouble all the time."""
    days = 31
    plan = replace(
        plan_of(2_000_000 + FIRST + month),
        seconds=days
        * 86_400.0
        / 0.6,  # after 60 % faults end, and then the world, once nothing is left to do
        workers=2,
        schedulers=0,
        jobs=3000,
        lease_seconds=600.0,
        poll_seconds=300.0,
        fault_seconds=3 * 3600.0,
        look_seconds=86_400.0,
    )
    outcome = run(replace(plan, features=(plan.features - {"pauses"}) | {"polling"}))
    assert outcome.seconds >= days * 86_400
