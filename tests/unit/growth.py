"""How the work of a call grows with its input: measured, and compared with itself.

A bound in seconds would say something about the machine. Eight times the input may take eight times as long,
or, with luck against us, a few times that; quadratic work takes sixty-four times as long on any machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_TIMES_LONGER = 8
_ALLOWED = 4 * _TIMES_LONGER
_TRIES = 4
_RUNS = 3
_ENOUGH_SECONDS = 0.002  # less is noise


def assert_linear(act: Callable[[T], object], make: Callable[[int], T], size: int = 2048) -> None:
    """`act` on `make(n)` does work in proportion to n. What it raises is its answer, too."""
    ratios = []
    for _ in range(_TRIES):
        ratio = _measured(act, make, size)
        if ratio <= _ALLOWED:
            return
        ratios.append(round(ratio))
    raise AssertionError(f"{_TIMES_LONGER} times the input took {ratios} times as long")


def _measured(act: Callable[[T], object], make: Callable[[int], T], size: int) -> float:
    small, large = make(size), make(size * _TIMES_LONGER)
    before = _seconds(act, small)
    return _seconds(act, large) / max(before, _ENOUGH_SECONDS / _TIMES_LONGER)


def _seconds(act: Callable[[T], object], value: T) -> float:
    """The least of a few runs, in seconds of this thread's own work: others on the machine do not count."""
    return min(_run(act, value) for _ in range(_RUNS))


def _run(act: Callable[[T], object], value: T) -> float:
    begun = time.thread_time()
    with suppress(Exception):  # a refusal is an answer: what it cost is what counts
        act(value)
    return time.thread_time() - begun
