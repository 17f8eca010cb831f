"""The wait of those who found nothing: full jitter, doubled each time, bounded."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskharbor.errors import InvalidArgument
from taskharbor.model.entropy import Entropy
from taskharbor.model.idle import CEILING, idle_backoff


@pytest.mark.parametrize(
    ("turn", "longest"), [(1, 0.25), (2, 0.5), (3, 1.0), (5, 4.0), (6, 5.0), (5000, 5.0)]
)
def test_each_turn_may_wait_twice_as_long_up_to_the_cap(turn, longest):
    entropy = Entropy(7)

    waits = [idle_backoff(turn, entropy).total_seconds() for _ in range(400)]

    assert max(waits) <= longest
    assert max(waits) > longest * 0.9
    assert min(waits) < longest * 0.1  # full jitter: from nothing at all


def test_a_lower_bound_holds_and_so_does_the_ceiling():
    entropy, minute, hour = Entropy(7), timedelta(minutes=1), timedelta(hours=1)

    assert idle_backoff(1, entropy, at_least=minute) == minute
    assert idle_backoff(1, entropy, at_least=hour) == CEILING
    assert all(idle_backoff(40, entropy, cap=hour) <= CEILING for _ in range(100))


@pytest.mark.parametrize(
    "wrong",
    [
        {"turn": 0},
        {"base": timedelta(0)},
        {"cap": timedelta(seconds=-1)},
        {"at_least": timedelta(seconds=-1)},
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidArgument):
        idle_backoff(**{"turn": 1, "entropy": Entropy(7), **wrong})
