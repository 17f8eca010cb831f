"""The exact sliding window, microsecond by microsecond."""

from datetime import timedelta

import pytest

from taskharbor.errors import InvalidArgument
from taskharbor.model.limits import RateLimit, Window, check_rate, free_at

TWO_A_SECOND = RateLimit(2, timedelta(seconds=1))
SECOND = 1_000_000


def spent(*at):
    window = Window()
    for instant in at:
        window.spend(1, instant)
    return window


@pytest.mark.parametrize(("now", "room"), [(SECOND - 1, 0), (SECOND, 1), (SECOND + 1, 1), (SECOND + 10, 2)])
def test_an_entry_leaves_exactly_one_period_later(now, room):
    assert spent(0, 10).room(TWO_A_SECOND, now) == room


def test_no_window_sees_more_than_the_count():
    window, taken = Window(), []
    for now in range(0, 5 * SECOND, 7_919):
        if window.room(TWO_A_SECOND, now):
            window.spend(1, now)
            taken.append(now)

    assert len(taken) >= 8
    assert all(len([at for at in taken if t < at <= t + SECOND]) <= 2 for t in range(-1, 5 * SECOND, 997))


def test_a_clock_that_steps_back_frees_nothing():
    window = spent(10 * SECOND, 10 * SECOND)

    assert window.room(TWO_A_SECOND, 0) == 0
    assert window.room(TWO_A_SECOND, 10 * SECOND) == 0
    assert window.room(TWO_A_SECOND, 11 * SECOND) == 2


def test_spending_behind_the_newest_entry_leaves_when_its_own_time_is_over():
    window = spent(10 * SECOND, 5 * SECOND)

    assert window.room(TWO_A_SECOND, 6 * SECOND - 1) == 0
    assert window.room(TWO_A_SECOND, 6 * SECOND) == 1  # the other one is of the future, and counts
    assert window.room(TWO_A_SECOND, 11 * SECOND - 1) == 1
    assert window.room(TWO_A_SECOND, 11 * SECOND) == 2


def test_what_was_spent_in_a_far_future_counts_for_one_window():
    window = spent(9000 * SECOND, 9000 * SECOND)

    assert window.wait_us(TWO_A_SECOND, 1, 10 * SECOND) == SECOND
    assert window.wait_us(TWO_A_SECOND, 1, 11 * SECOND - 1) == 1
    assert window.room(TWO_A_SECOND, 11 * SECOND) == 2


def test_a_clock_that_goes_back_again_begins_a_window_again():
    window = spent(9000 * SECOND, 9000 * SECOND)
    window.room(TWO_A_SECOND, 100 * SECOND)

    assert window.room(TWO_A_SECOND, 50 * SECOND) == 0
    assert window.room(TWO_A_SECOND, 51 * SECOND - 1) == 0
    assert window.room(TWO_A_SECOND, 51 * SECOND) == 2


@pytest.mark.parametrize(
    ("wanted", "now", "wait"),
    [
        (1, 0, SECOND),
        (1, SECOND - 1, 1),
        (1, SECOND, 0),
        (2, 0, SECOND + 10),
        (2, SECOND, 10),
        (2, SECOND + 10, 0),
    ],
)
def test_the_wait_is_until_the_wanted_number_fits(wanted, now, wait):
    window = spent(0, 10)

    assert window.wait_us(TWO_A_SECOND, wanted, now) == wait
    assert window.room(TWO_A_SECOND, now + wait) >= wanted


def test_a_lowered_rate_has_no_negative_room():
    window = spent(0, 0, 0)

    assert window.room(RateLimit(1, timedelta(seconds=1)), 1) == 0


@pytest.mark.parametrize(
    "rate",
    [
        None,
        5,
        (1, timedelta(seconds=1)),
        RateLimit(0, timedelta(seconds=1)),
        RateLimit(-1, timedelta(seconds=1)),
        RateLimit(1, timedelta(0)),
        RateLimit(1, timedelta(seconds=-1)),
        RateLimit(1.5, timedelta(seconds=1)),  # type: ignore[arg-type]
        RateLimit(1, 60),  # type: ignore[arg-type]
    ],
)
def test_a_rate_needs_a_count_and_a_period(rate):
    with pytest.raises(InvalidArgument, match="execute_rate"):
        check_rate(rate, "execute_rate")


def test_one_per_microsecond_is_a_rate():
    check_rate(RateLimit(1, timedelta(microseconds=1)), "rate")


@pytest.mark.parametrize(
    ("entries", "now", "free"),
    [
        ([], 0, None),
        ([(0, 1)], 0, None),
        ([(0, 1), (10, 1)], 20, SECOND),
        ([(0, 1), (10, 1)], SECOND - 1, SECOND),
        ([(0, 1), (10, 1)], SECOND, None),
        ([(0, 1), (10, 2)], 20, SECOND + 10),
        ([(0, 2), (10, 2)], 20, SECOND + 10),
        ([(0, 5)], 20, SECOND),
    ],
)
def test_a_spent_budget_says_when_it_has_room_again(entries, now, free):
    assert free_at(TWO_A_SECOND, entries, now) == free
