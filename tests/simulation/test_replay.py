"""A seed replays: in another process, with another hash seed, and smaller."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from taskharbor.testing.simulator import Plan, World, plan_of, simulate
from taskharbor.testing.simulator.__main__ import main
from taskharbor.testing.simulator.shrink import shrink
from taskharbor.testing.simulator.trace import trace_lines
from tests.simulation.planted_bugs import BUGS

pytestmark = pytest.mark.timeout(600)  # seconds of work, minutes on a busy machine


def summaries(hash_seed: str, *options: str) -> list[str]:
    command = [sys.executable, "-m", "taskharbor.testing.simulator", "--seed", "100", *options]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": hash_seed}
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "seeds", [2, pytest.param(20, marks=pytest.mark.more("twenty worlds, twice, in processes of their own"))]
)
def test_seeds_give_the_same_histories_in_two_processes(seeds: int) -> None:
    first, second = (summaries(hash_seed, "--seeds", str(seeds)) for hash_seed in ("1", "2"))

    assert len(first) == seeds
    assert first == second


@pytest.mark.more("four worlds on SQLite, in processes of their own")
def test_sqlite_replays_too() -> None:
    first, second = (summaries(hash_seed, "--seeds", "2", "--store", "sqlite") for hash_seed in ("1", "2"))

    assert first == second


def test_different_seeds_give_different_histories() -> None:
    assert len({simulate(plan_of(seed)).hash for seed in range(3)}) == 3


@pytest.mark.more("up to two hundred worlds")
def test_a_failing_world_shrinks_and_shows_what_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug = next(bug for bug in BUGS if bug.name.startswith("BUG11"))
    bug.plant(monkeypatch)
    worlds = (World(replace(plan_of(seed), **bug.world, jobs=20, seconds=15.0)) for seed in range(60))
    outcome = next(found for world in worlds if (found := world.run()).verdict.broken)

    smallest = shrink(outcome)

    assert smallest.verdict.broken & outcome.verdict.broken
    assert smallest.plan.jobs <= outcome.plan.jobs
    assert len(smallest.kept) < len(outcome.kept)
    assert not smallest.plan.features


def test_the_command_prints_a_readable_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--trace"]) == 0

    printed = capsys.readouterr().out
    assert "seed 3: sound" in printed
    assert " enqueue " in printed
    assert " grant " in printed


def test_a_trace_of_one_job_leaves_the_others_out() -> None:
    outcome = simulate(plan_of(3))
    job = next(event.job for event in outcome.history if event.op == "grant")

    whole, mine = list(trace_lines(outcome.history)), list(trace_lines(outcome.history, job))

    assert len(mine) < len(whole)
    assert all(" j" in line or " fault " in line for line in mine)


def test_nothing_depends_on_the_order_in_which_worlds_run() -> None:
    plan: Plan = plan_of(11)
    alone = simulate(plan).hash
    simulate(plan_of(12))

    assert simulate(plan).hash == alone
