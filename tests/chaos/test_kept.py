"""A run of the chaos cases that was broken off is continued from what it has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.chaos import cases  # noqa: F401 - the cases enter themselves
from tests.chaos.case import CASES, Outcome
from tests.chaos.kept import keep, seen_before
from tests.chaos.report import page
from tests.chaos.verdict import Duplicate, Findings
from tests.chaos.world import full

SIZE = full()


def outcome(**more: Any) -> Outcome:
    found = Findings(jobs=3, runs=4, duplicates=[Duplicate("a", 2, 1, "worker-1")], events=12)
    return Outcome(
        CASES["C01"],
        "sqlite",
        7,
        findings=found,
        injections=["kill -9 of worker 12"],
        recoveries=[("begun again", 5.5)],
        commit="abc1234",
        **more,
    )


def test_outcomes_come_back_as_they_were_kept(tmp_path: Path) -> None:
    outcomes = [outcome(), outcome(error="it broke"), outcome(late=["slow"]), outcome(not_here="no mount")]

    keep(outcomes, SIZE, 3.5, tmp_path / "build" / "chaos.json")
    seen = seen_before(SIZE, tmp_path / "build" / "chaos.json")

    assert seen.minutes == 3.5
    assert seen.outcomes() == outcomes


def test_nothing_was_seen_before_the_first_run_or_by_one_of_another_size(tmp_path: Path) -> None:
    keep([outcome()], full(60), 1.0, tmp_path / "chaos.json")

    assert seen_before(SIZE, tmp_path / "none.json").rows == []
    assert seen_before(SIZE, tmp_path / "chaos.json").rows == []


def test_the_page_says_what_failed_what_is_to_come_and_of_which_commit() -> None:
    text = page([outcome(), outcome(error="it broke")], SIZE, planned=5, minutes=2.0)

    assert "**1 passed, 1 failed, 0 late; 3 of 5 were still to come when this page was written.**" in text
    assert "- C01 on sqlite, seed 7: it broke" in text
    assert "| abc1234 |" in text
