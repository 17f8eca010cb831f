"""Buckets: how often each caller may call."""

from datetime import timedelta

from taskharbor.testing.clock import SimulatedClock
from taskharbor.web.rates import Buckets


def test_two_seconds_worth_may_come_at_once_and_then_as_many_as_flow_in() -> None:
    clock = SimulatedClock()
    buckets = Buckets(10, clock)

    assert [buckets.wait_seconds("a") for _ in range(20)] == [0.0] * 20
    assert 0 < buckets.wait_seconds("a") <= 0.1
    clock.advance(timedelta(seconds=0.5))
    assert [bool(buckets.wait_seconds("a")) for _ in range(6)] == [False] * 5 + [True]


def test_what_one_spends_takes_nothing_from_another() -> None:
    buckets = Buckets(1, SimulatedClock())
    for _ in range(5):
        buckets.wait_seconds("a")

    assert buckets.wait_seconds("b") == 0.0


def test_a_refusal_costs_nothing() -> None:
    clock = SimulatedClock()
    buckets = Buckets(1, clock)
    for _ in range(100):
        buckets.wait_seconds("a")
    clock.advance(timedelta(seconds=1))

    assert buckets.wait_seconds("a") == 0.0


def test_zero_means_no_limit() -> None:
    buckets = Buckets(0, SimulatedClock())

    assert {buckets.wait_seconds("a") for _ in range(1000)} == {0.0}


def test_a_rate_below_one_a_second_still_lets_one_through() -> None:
    buckets = Buckets(0.1, SimulatedClock())

    assert buckets.wait_seconds("a") == 0.0
    assert buckets.wait_seconds("a") > 1
