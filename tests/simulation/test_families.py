"""Families of jobs among workers that die: ten rules hold on every store, and planted bugs break them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from taskharbor.drivers import families, family_enqueue, family_verbs
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import Claim
from taskharbor.model.entropy import Entropy
from taskharbor.model.settlement import Ack, Fail
from taskharbor.testing.simulator.families import LEASE, QUEUES, _World, family_world
from tests.property import test_the_model_finds_family_bugs as bugs
from tests.property.test_drivers_match_the_model import STORES

BROKEN: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    bugs.an_end_is_counted_before_the_token_is_checked: "F4",
    bugs.a_stalled_child_is_counted_at_each_reclaim: "F3",
    bugs.the_last_two_children_both_read_one_left: "F5",
    bugs.a_release_behind_the_commit_is_lost: "F5",
    bugs.what_is_owed_is_never_looked_at_again: "F5",
    bugs.failure_fires_at_the_first_failure: "F1",
    bugs.a_stop_forgets_running_children: "F5",
    bugs.a_stop_spares_everybody: "F2",
    bugs.a_child_of_a_stale_lease_is_stored: "F8",
    bugs.one_failure_more_is_tolerated: "F6",
    bugs.an_optional_failure_counts: "F4",
    bugs.a_child_of_a_stopped_parent_is_handed_out: "F2",
    bugs.a_note_is_written_over: "F7",
    bugs.a_stall_forgets_the_notes: "F7",
    bugs.a_second_event_wins: "F9",
    bugs.an_event_after_its_timeout_is_accepted: "F9",
    bugs.a_prune_takes_a_child_early: "F10",
    bugs.a_root_leaves_its_children_behind: "F10",
}
"""The bug, and a rule that it breaks. The model finds these, and others."""


def test_families_end_as_they_must_although_workers_die() -> None:
    met: Counter[str] = Counter()
    deaths = 0
    for seed in range(40):
        verdict = asyncio.run(family_world(MemoryDriver, seed=seed))
        assert not verdict.violations, (seed, verdict)
        met += verdict.met
        deaths += verdict.deaths

    assert deaths > 100
    for name in ("root completed", "root failed", "crawl completed", "durable completed", "events completed"):
        assert met[name], name
    assert met["plain failed"], "no event was left to its deadline"


def test_families_end_so_although_workers_die_between_any_two_consequences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every call carries out one record of what it owes: each of the next may be the last of its worker."""
    carry_out = families.carry_out
    for module in (families, family_enqueue, family_verbs):
        monkeypatch.setattr(module, "carry_out", lambda jobs, limit=1: carry_out(jobs, min(limit, 1)))
    deaths = 0
    for seed in range(20):
        verdict = asyncio.run(family_world(MemoryDriver, seed=seed, deaths=0.15))
        assert not verdict.violations, (seed, verdict)
        deaths += verdict.deaths

    assert deaths > 100


@pytest.mark.parametrize("name", ["sqlite"])
def test_families_end_so_in_a_file(name: str, tmp_path: Path) -> None:
    _hold(name, tmp_path, seeds=1)


@pytest.mark.more("a thousand calls for each store")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(set(STORES) - {"memory"}))
def test_families_end_so_on_every_store(name: str, tmp_path: Path) -> None:
    _hold(name, tmp_path, seeds=3)


def _hold(name: str, folder: Path, seeds: int) -> None:
    for seed in range(seeds):
        url = STORES[name](folder)
        if not asyncio.run(_has_workflows(connect(url))):
            pytest.skip(f"{name} does not declare workflows")
        verdict = asyncio.run(family_world(lambda url=url: connect(url), seed=seed))  # type: ignore[misc]
        assert not verdict.violations, (seed, verdict)


async def _has_workflows(driver: Driver) -> bool:
    async with driver:
        return driver.capabilities.workflows


def test_a_run_that_lost_its_lease_is_not_blamed_for_a_stop() -> None:
    """Its job was run again and completed, and then its parent was stopped."""

    async def blamed() -> list[str]:
        async with MemoryDriver() as driver:
            world = _World(driver, Entropy(1), deaths=0.0)
            root = world._job("root", done_by="children", fail_fast=True)
            kids = [world._job(kind, parent=root.id) for kind in ("plain", "broken")]
            await driver.enqueue([root, *kids], now=world.now)
            claim = Claim(queues=QUEUES, worker_id="w", limit=2, lease_for=LEASE)
            stale = {job.type: job for job in (await driver.reserve(claim, now=world.now)).jobs}
            world.now += LEASE
            await driver.reclaim(now=world.now)
            again = {job.type: job for job in (await driver.reserve(claim, now=world.now)).jobs}
            await driver.settle([Ack(again["plain"].lease)], now=world.now)
            await driver.settle([Fail(again["broken"].lease, "broken")], now=world.now)
            await world._check_start(driver, stale["plain"])
            return world.verdict.violations

    assert asyncio.run(blamed()) == []


@pytest.mark.more("they test the rules, not the product")
@pytest.mark.parametrize("plant", BROKEN, ids=lambda plant: plant.__name__)
def test_a_planted_bug_breaks_a_rule(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    seen: set[str] = set()
    for seed in range(12):
        verdict = asyncio.run(family_world(MemoryDriver, seed=seed))
        seen |= {violation.partition(":")[0] for violation in verdict.violations}
        if BROKEN[plant] in seen:
            return

    pytest.fail(f"{BROKEN[plant]} was not broken; seen: {sorted(seen)}")
