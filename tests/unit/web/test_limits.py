"""Buckets: how often each caller may call."""

from datetime import timedelta

from taskharbor.testing.clock import SimulatedClock
from taskharbor.web.limits import RateLimiter


def test_two_seconds_worth_may_come_at_once_and_then_as_many_as_flow_in() -> None:
    clock = SimulatedClock()
    limiter = RateLimiter(10, clock)

    assert [limiter.wait_seconds("a") for _ in range(20)] == [0.0] * 20
    assert 0 < limiter.wait_seconds("a") <= 0.1
    clock.advance(timedelta(seconds=0.5))
    assert [bool(limiter.wait_seconds("a")) for _ in range(6)] == [False] * 5 + [True]


def test_what_one_spends_takes_nothing_from_another() -> None:
    limiter = RateLimiter(1, SimulatedClock())
    for _ in range(5):
        limiter.wait_seconds("a")

    assert limiter.wait_seconds("b") == 0.0


def test_a_refusal_costs_nothing() -> None:
    clock = SimulatedClock()
    limiter = RateLimiter(1, clock)
    for _ in range(100):
        limiter.wait_seconds("a")
    clock.advance(timedelta(seconds=1))

    assert limiter.wait_seconds("a") == 0.0


def test_zero_means_no_limit() -> None:
    limiter = RateLimiter(0, SimulatedClock())

    assert {limiter.wait_seconds("a") for _ in range(1000)} == {0.0}


def test_a_rate_below_one_a_second_still_lets_one_through() -> None:
    limiter = RateLimiter(0.1, SimulatedClock())

    assert limiter.wait_seconds("a") == 0.0
    assert limiter.wait_seconds("a") > 1
