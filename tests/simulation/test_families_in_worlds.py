"""Families in whole worlds: real workers, clients and schedulers, and everything that goes wrong there."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from taskharbor.testing.simulator import Outcome, Plan, World, plan_of
from tests.property import test_the_model_finds_family_bugs as bugs
from tests.simulation.family_app import FamilyApp, broken_families

pytestmark = pytest.mark.timeout(600)  # seconds of work, minutes on a busy machine
FIRST = int(os.environ.get("TASKHARBOR_SEED", "0"))
LEFT_OUT = frozenset({"deletes", "cancels", "requeues"})
"""What an operator takes away or runs again would have to be known to the verdict on families."""


def run(plan: Plan) -> Outcome:
    app = FamilyApp()
    outcome = World(replace(plan, features=plan.features - LEFT_OUT), app).run()
    assert outcome.is_sound, f"seed {plan.seed}: {outcome.verdict}\n{outcome.errors}"
    assert app.stored
    assert broken_families(app, outcome) == [], f"seed {plan.seed}"
    return outcome


@pytest.mark.parametrize("seed", range(4))
def test_families_end_as_they_must_in_a_world(seed: int) -> None:
    run(plan_of(FIRST + seed))


@pytest.mark.more("a hundred worlds")
def test_families_end_so_in_a_hundred_worlds() -> None:
    for seed in range(100, 200):
        run(plan_of(FIRST + seed))


@pytest.mark.more("twenty worlds on a file")
def test_families_end_so_on_sqlite() -> None:
    for seed in range(200, 220):
        run(plan_of(FIRST + seed, "sqlite"))


@pytest.mark.more("it tests the verdict, not the product")
def test_a_callback_that_fires_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bugs.failure_fires_at_the_first_failure(monkeypatch)
    for seed in range(20):
        plan, app = plan_of(FIRST + seed), FamilyApp()
        outcome = World(replace(plan, features=plan.features - LEFT_OUT), app).run()
        if any(text.startswith("F1") for text in broken_families(app, outcome)):
            return
    pytest.fail("F1 was not broken")


@pytest.mark.more("a month, in which little happens")
@pytest.mark.timeout(1800)
def test_families_end_so_for_a_simulated_month() -> None:
    """Long leases, rare jobs, and some trouble all the time."""
    days = 31
    plan = plan_of(3_000_000 + FIRST)
    month = replace(
        plan,
        seconds=days * 86_400.0 / 0.6,  # after 60 % faults end, and then the world, once nothing is left
        workers=2,
        schedulers=0,
        jobs=1500,
        lease_seconds=600.0,
        poll_seconds=300.0,
        fault_seconds=3 * 3600.0,
        look_seconds=86_400.0,
    )
    outcome = run(replace(month, features=(plan.features - {"pauses"}) | {"polling"}))
    assert outcome.seconds >= days * 86_400
