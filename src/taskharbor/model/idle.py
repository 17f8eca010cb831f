"""How long to wait before looking again for what was not there."""

from __future__ import annotations

from datetime import timedelta

from taskharbor.errors import InvalidArgument
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NO_TIME

CEILING = timedelta(minutes=5)
"""No wait is longer than that, whatever is asked for."""


def idle_backoff(
    turn: int,
    entropy: Entropy,
    *,
    base: timedelta = timedelta(seconds=0.25),
    cap: timedelta = timedelta(seconds=5),
    at_least: timedelta = NO_TIME,
) -> timedelta:
    """The wait after the `turn`-th look in a row that found nothing, counted from 1.

    Full jitter: anything up to base × 2^(turn − 1), at most `cap`; never less than `at_least`.

    Raises:
        InvalidArgument: a turn below 1, a base or cap that is not above zero, or a negative `at_least`.
    """
    if turn < 1:
        raise InvalidArgument(f"turn={turn} must be at least 1")
    if base <= NO_TIME or cap <= NO_TIME or at_least < NO_TIME:
        raise InvalidArgument(
            f"base={base} and cap={cap} must be above zero, at_least={at_least} not below it"
        )
    longest = min(base.total_seconds() * 2.0 ** min(turn - 1, 32), cap.total_seconds())
    wait = timedelta(seconds=entropy.between(0.0, longest))
    return min(max(wait, at_least), CEILING)
