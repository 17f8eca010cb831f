"""Callbacks of groups fire once each, although workers are killed and stores are restarted meanwhile.

`python -m tests.chaos.callbacks --runs 100` runs more of it, `bench/bench_callbacks.py` beside other queues.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.callbacks import Size, Tally, Trial, tried
from tests.chaos.callbacks_ours import STORES, Ours, contestants

every_store = pytest.mark.parametrize("name", STORES)


@pytest.mark.more("kills workers and waits for their leases")
@pytest.mark.timeout(400)
@every_store
def test_a_callback_fires_once_although_a_worker_is_killed(name: str) -> None:
    tally = _tried(name, Size(runs=2, children=300, restarted_every=2))

    assert tally.is_good, str(tally)
    assert tally.kills >= 2
    assert tally.restarts == 1


@pytest.mark.long
@pytest.mark.timeout(1200)
@every_store
def test_callbacks_of_a_thousand_children_fire_once_each(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = _tried(name, Size(runs=5))

    with capsys.disabled():
        print(f"\n{name}: {tally}")
    assert tally.is_good, str(tally)
    assert tally.kills >= 5
    assert tally.restarts == 1


def _tried(name: str, size: Size) -> Tally:
    with contestants([name]) as [one]:
        _need_workflows(one)
        return asyncio.run(tried(one, size))


def _need_workflows(one: Ours) -> None:
    if not one.has_workflows:
        pytest.skip(f"{one.name} does not declare workflows")


class Silent:
    """Says nothing by itself: the lines decide."""

    name = "silent"
    worker_count = 0
    patience = 0.0

    async def begin(self, folder: Path) -> None: ...

    def worker(self) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    async def store_group(self, run: int, children: int) -> None: ...

    async def restart_store(self) -> bool:
        return True

    async def has_work_left(self) -> bool:
        return False

    async def looked_at(self, runs: Sequence[int], children: int) -> list[str]:
        return []

    async def end(self) -> None: ...


@pytest.mark.parametrize(("silent", "patience", "is_over"), [(4.0, 60.0, False), (6.0, 60.0, True)])
def test_a_trial_waits_no_longer_once_no_job_is_left(
    tmp_path: Path, silent: float, patience: float, is_over: bool
) -> None:
    one = Silent()
    one.patience = patience

    assert asyncio.run(Trial(one, tmp_path, Size(runs=1))._is_over(silent)) is is_over


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["child 0 7", "child 1 7", "callback 7"], "good"),
        (["child 0 7", "child 1 7"], "lost"),
        (["child 0 7", "child 1 7", "callback 7", "callback 7"], "twice"),
        (["child 0 7", "callback 7"], "missing"),
        (["child 0 7", "child 1 7", "child 1 7", "callback 7"], "good"),
    ],
)
def test_what_is_lost_or_doubled_is_seen(tmp_path: Path, lines: list[str], expected: str) -> None:
    """A trial that could not fail would prove nothing."""
    trial = Trial(Silent(), tmp_path, Size(runs=1, children=2))
    (tmp_path / "run-0").write_text("".join(f"{line}\n" for line in lines))
    trial.tally.runs = 1

    asyncio.run(trial._count())

    tally = trial.tally
    found = "lost" if tally.lost else "twice" if tally.twice else "missing" if tally.missing else "good"
    assert (found, tally.is_good) == (expected, expected == "good")
