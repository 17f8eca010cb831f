"""Time series out of cells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskharbor.model.log_cells import BUCKETS, Level, Numbers
from taskharbor.model.log_series import MINUTE, QUARTER, WINDOWS, floor, percentile, series, window

START = datetime(2093, 5, 17, 9, 30, tzinfo=UTC)


def row(
    queue: str = "mail", type_name: str = "send", *, runs: tuple[float, ...] = (), **fields: Any
) -> Numbers:
    numbers = Numbers(queue, type_name, **fields)
    if runs:
        numbers.ran(runs)
    return numbers


def of(cells, levels=(), *, minutes: int = 4, **options):
    return series(cells, levels, START, START + minutes * MINUTE, MINUTE, **options)


def test_a_window_has_whole_steps_and_ends_with_the_running_one():
    now = START + timedelta(seconds=61)

    assert window("15m", now) == (START - 13 * MINUTE, START + 2 * MINUTE, MINUTE)
    assert window("24h", now) == (START + QUARTER - timedelta(days=1), START + QUARTER, QUARTER)
    for name, (span, step) in WINDOWS.items():
        since, until, _ = window(name, now)
        assert since <= now < until, name
        assert (until - since, floor(since, step)) == (span, since)


def test_numbers_are_added_up_by_name_and_step():
    cells = [
        (START, [row(completed=2, failed=1), row("push", completed=5)]),
        (START + timedelta(seconds=30), [row(completed=1, retried=4)]),
        (START + 2 * MINUTE, [row(type_name="other", completed=7)]),
        (START - MINUTE, [row(completed=99)]),
        (START + 4 * MINUTE, [row(completed=99)]),
    ]

    [total] = of(cells)
    mail, push = of(cells, by="queue")
    [other] = of(cells, by="type", names=["other"])

    assert (total.name, total.done, total.failed) == ("", [8, 0, 7, 0], [1, 0, 0, 0])
    assert (mail.name, mail.done, mail.retried) == ("mail", [3, 0, 7, 0], [4, 0, 0, 0])
    assert push.done == [5, 0, 0, 0]
    assert other.done == [None, None, 7, 0]


def test_where_nothing_was_measured_nothing_is_shown():
    [none] = of([])
    [named] = of([], by="queue", names=["mail"])

    for line in (none, named):
        assert line.done == line.arrived == line.waiting == line.run_p95_s == [None] * 4
    assert of([], by="queue") == []


def test_percentiles_are_about_right():
    values = [0.001 * 1.3**number for number in range(40)]
    buckets = row(runs=tuple(values)).run

    for share in (0.05, 0.5, 0.95):
        exact = values[int(len(values) * share)]
        assert percentile(buckets, share) == pytest.approx(exact, rel=0.4)
    assert percentile([0] * BUCKETS, 0.5) is None
    [line] = of([(START, [row(runs=(4.0, 4.0, 4.0))])])
    assert line.run_p50_s[0] == pytest.approx(4.0, rel=0.4)
    assert line.run_p50_s[1] is None


def test_levels_are_taken_as_they_were_and_give_what_arrived():
    cells = [(START, [row(completed=10, failed=2)]), (START + MINUTE, [row(completed=3)])]
    levels = [
        (START, [Level("mail", 5, 5, 1, 0, 7.0)]),
        (START + MINUTE, [Level("mail", 9, 8, 2, 2, None)]),
        (START + 2 * MINUTE, [Level("mail", 1, 1, 0, 2, 1.0), Level("push", 4, 4, 0, 0, 9.0)]),
    ]

    [mail] = of(cells, levels, by="queue", names=["mail"])
    [total] = of(cells, levels)

    assert mail.waiting == [5, 9, 1, None]
    assert mail.running == [1, 2, 0, None]
    assert mail.oldest_s == [7.0, None, 1.0, None]
    assert mail.arrived == [17, 0, None, None]
    assert total.waiting == [5, 9, 5, None]
    assert total.oldest_s == [7.0, None, 9.0, None]


def test_the_last_step_knows_what_arrived_when_the_next_has_begun():
    levels = [(START + number * MINUTE, [Level("mail", number, 0, 0, 0)]) for number in range(5)]

    [mail] = of([], levels, by="queue")

    assert (mail.arrived, mail.waiting) == ([1, 1, 1, 1], [0, 1, 2, 3])


def test_a_queue_that_came_later_was_empty_before():
    levels = [
        (START, [Level("mail", 1, 1, 0, 0)]),
        (START + MINUTE, [Level("mail", 1, 1, 0, 0), Level("new", 3, 3, 0, 0)]),
    ]

    [new] = of([], levels, by="queue", names=["new"])

    assert (new.waiting[:2], new.arrived[:1]) == ([0, 3], [3])


def test_types_have_no_levels():
    [line] = of([(START, [row(completed=1)])], [(START, [Level("mail", 1, 1, 0, 0)])], by="type")

    assert (line.name, line.done[0], line.waiting, line.arrived) == ("send", 1, [None] * 4, [None] * 4)
