"""Families in whole worlds: real workers, clients and schedulers, and everything that goes wrong there.

Families are cancelled, retried, deleted, pruned and sent events meanwhile. All ten rules are judged behind
every call; for each of them a planted bug shows that it can be broken.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from taskharbor.testing.simulator import FAMILY_RULES, Outcome, Plan, World, plan_of, with_families
from taskharbor.testing.simulator.plan import rude_plan_of
from tests.property import test_the_model_finds_family_bugs as bugs

pytestmark = pytest.mark.timeout(600)  # seconds of work, minutes on a busy machine
FIRST = int(os.environ.get("TASKHARBOR_SEED", "0"))
MOST_SEEDS = 25

BROKEN: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    bugs.failure_fires_at_the_first_failure: "F1",
    bugs.a_child_of_a_stopped_parent_is_handed_out: "F2",
    bugs.a_stop_spares_everybody: "F2",
    bugs.a_reopened_parent_fires_again: "F3",
    bugs.a_requeue_does_not_open_the_parent: "F3",
    bugs.an_end_is_counted_before_the_token_is_checked: "F4",
    bugs.a_stalled_child_is_counted_at_each_reclaim: "F4",
    bugs.an_optional_failure_counts: "F4",
    bugs.a_release_behind_the_commit_is_lost: "F5",
    bugs.the_last_two_children_both_read_one_left: "F5",
    bugs.a_skip_does_not_go_on: "F5",
    bugs.a_stop_forgets_running_children: "F5",
    bugs.one_failure_more_is_tolerated: "F6",
    bugs.a_stop_by_deadline_is_a_cancel: "F6",
    bugs.a_stop_takes_the_finally_child: "F6",
    bugs.a_note_is_written_over: "F7",
    bugs.a_note_needs_no_lease: "F8",
    bugs.a_second_event_wins: "F9",
    bugs.a_prune_takes_a_child_early: "F10",
    bugs.a_root_leaves_its_children_behind: "F10",
    bugs.a_child_goes_before_its_parent: "F10",
}
"""The bug, and the rule by which the worlds find it."""


def run(plan: Plan) -> Outcome:
    outcome = World(with_families(plan)).run()
    again = f"python -m taskharbor.testing.simulator --seed {plan.seed} --store {plan.store} --families"
    assert outcome.is_sound, f"{outcome.families}\n{outcome.verdict}\n{outcome.errors}\nto see it: {again}"
    assert outcome.relatives > 0
    return outcome


@pytest.mark.parametrize("seed", range(4))
def test_families_end_as_they_must_in_a_world(seed: int) -> None:
    run(plan_of(FIRST + seed))


@pytest.mark.more("sixty worlds")
def test_families_end_so_in_sixty_worlds() -> None:
    for seed in range(100, 160):
        run(plan_of(FIRST + seed))


@pytest.mark.more("twenty worlds on a file")
def test_families_end_so_on_sqlite() -> None:
    for seed in range(200, 220):
        run(plan_of(FIRST + seed, "sqlite"))


@pytest.mark.more("ten worlds")
def test_families_end_so_among_rude_workers() -> None:
    for seed in range(300, 310):
        run(rude_plan_of(FIRST + seed))


@pytest.mark.more("they test the rules, not the product")
@pytest.mark.parametrize("plant", BROKEN, ids=lambda plant: plant.__name__)
def test_a_planted_bug_breaks_a_rule(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    seen: set[str] = set()
    for seed in range(MOST_SEEDS):
        seen |= World(with_families(plan_of(FIRST + seed))).run().broken
        if BROKEN[plant] in seen:
            return

    pytest.fail(f"{BROKEN[plant]} was not broken; seen: {sorted(seen)}")


def test_every_rule_is_broken_by_a_bug() -> None:
    assert set(BROKEN.values()) == set(FAMILY_RULES)


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
    features = (plan.features - {"pauses"}) | {"polling", "cancels", "requeues", "deletes"}
    outcome = run(replace(month, features=features))
    assert outcome.seconds >= days * 86_400
