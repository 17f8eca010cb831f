"""How tests are shared out among processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sharing import TOGETHER, Sharing

ROOT = Path(__file__).parents[2]
BROWSER = [f"tests/browser/test_a.py::test_{number}" for number in range(4)]
SINGLE = [f"tests/unit/test_b.py::test_{number}" for number in range(20)]
TESTS = [*SINGLE[:10], *BROWSER, *SINGLE[10:]]


class Process:
    """What is known of a process that runs tests."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.ran: list[str] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.waiting += numbers

    def shutdown(self) -> None:
        self.shutting_down = True


def sharing_among(*processes: Process) -> Any:
    """The tests are collected, and each process has its first ones."""
    values: dict[str, Any] = {"tx": ["popen"] * len(processes)}
    config: Any = SimpleNamespace(getvalue=values.get, option=SimpleNamespace(loadscopereorder=True))
    sharing: Any = Sharing(config)
    for process in processes:
        sharing.add_node(process)
        sharing.add_node_collection(process, TESTS)
    sharing.schedule()
    return sharing


def run_one(sharing: Any, process: Process) -> None:
    number = process.waiting.pop(0)
    process.ran.append(TESTS[number])
    sharing.mark_test_complete(process, number)


def test_each_test_runs_once_and_a_place_in_one_process() -> None:
    first, second = Process(), Process()
    sharing = sharing_among(first, second)

    while first.waiting or second.waiting:
        for process in (first, second):
            if process.waiting:
                run_one(sharing, process)

    assert sorted(first.ran + second.ran) == sorted(TESTS)
    assert first.ran[:4] == BROWSER
    assert second.ran == [one for one in SINGLE if one not in first.ran]
    assert len(second.ran) > 10
    assert sharing.tests_finished


def test_what_a_process_has_run_is_forgotten() -> None:
    process = Process()
    sharing = sharing_among(process)

    for _ in range(15):
        run_one(sharing, process)

    assert sum(len(unit) for unit in sharing.assigned_work[process].values()) == len(process.waiting)


def test_the_tests_of_a_process_that_dies_go_to_another() -> None:
    first, second = Process(), Process()
    sharing = sharing_among(first, second)
    run_one(sharing, first)

    crashed = sharing.remove_node(first)
    while second.waiting:
        run_one(sharing, second)

    assert crashed == BROWSER[1]
    assert sorted([*first.ran, *second.ran]) == sorted(TESTS)


@pytest.mark.parametrize("place", TOGETHER)
def test_every_place_is_there(place: str) -> None:
    assert (ROOT / place).exists()
