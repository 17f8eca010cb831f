"""What a signal means that comes twice, and one that was ignored from the start."""

from __future__ import annotations

import signal
from contextlib import contextmanager

from taskharbor.worker.signals import StopRequests, stop_signals


@contextmanager
def disposition(number, action):
    before = signal.signal(number, action)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_a_repeat_within_a_second_is_the_same_wish():
    wishes = StopRequests()

    assert [wishes.received() for _ in range(3)] == [1, 0, 0]
    assert wishes.count == 1


def test_later_wishes_are_counted():
    wishes = StopRequests(same_seconds=0.0)

    assert [wishes.received() for _ in range(3)] == [1, 2, 3]


def test_a_repeat_does_not_put_the_next_wish_off():
    wishes = StopRequests()
    wishes._clock = Ticking([10.0, 10.7, 11.2, 11.9, 12.3])  # type: ignore[assignment]

    assert [wishes.received() for _ in range(5)] == [1, 0, 2, 0, 3]


class Ticking:
    def __init__(self, times):
        self._times = iter(times)

    def monotonic(self):
        return next(self._times)


def test_an_interrupt_that_is_ignored_from_the_start_is_nobodys_wish():
    with disposition(signal.SIGINT, signal.SIG_IGN):
        assert stop_signals() == (signal.SIGTERM,)
    with disposition(signal.SIGINT, signal.default_int_handler):
        assert stop_signals() == (signal.SIGTERM, signal.SIGINT)
