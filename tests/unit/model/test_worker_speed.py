"""A worker is slow if the same tasks take longer there than elsewhere."""

import pytest

from taskharbor.model.log_cells import Numbers
from taskharbor.model.worker_speed import FEWEST_RUNS, times_slower


def cell(**seconds_of: list[float]) -> list[Numbers]:
    """A worker's minute: the runs of every task."""
    rows = []
    for type, seconds in seconds_of.items():
        row = Numbers("mail", type)
        row.ran(seconds)
        rows.append(row)
    return rows


def test_the_same_task_takes_longer_on_the_slow_one():
    cells = [("a", cell(send=[0.05] * 40)), ("b", cell(send=[0.05] * 40)), ("c", cell(send=[0.2] * 20))]

    found = times_slower(cells)

    assert found["c"] == pytest.approx(4)
    assert found["a"] == found["b"] < 1


def test_longer_tasks_make_no_worker_slow():
    cells = [
        ("a", cell(send=[0.05] * 40, render=[3.0])),
        ("b", cell(send=[0.05] * 20, render=[3.0] * 30)),
        ("c", cell(send=[0.05] * 20, render=[3.0] * 30)),
    ]

    assert times_slower(cells) == pytest.approx({"a": 1, "b": 1, "c": 1})


def test_cells_of_several_minutes_count_together():
    minute = [("a", cell(send=[0.1] * 5)), ("b", cell(send=[0.3] * 5))]

    assert times_slower(minute) == {}
    assert times_slower([*minute, *minute])["b"] == pytest.approx(3)


@pytest.mark.parametrize(
    "cells",
    [
        [],
        [("a", cell(send=[0.1] * 100))],
        [("a", cell(send=[0.1] * 100)), ("b", cell(render=[9.0] * 100))],
        [("a", cell(send=[0.1] * 100)), ("b", cell(send=[9.0] * (FEWEST_RUNS - 1)))],
        [("a", cell(send=[0.0] * 100)), ("b", cell(send=[0.0] * 100))],
    ],
    ids=["nobody", "alone", "other tasks", "too few runs", "no time at all"],
)
def test_who_cannot_be_compared_is_not_judged(cells):
    assert "b" not in times_slower(cells)
