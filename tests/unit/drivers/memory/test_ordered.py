"""The sorted collection beside a plain sorted list, over the borders of its chunks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import pytest

from taskharbor.drivers.memory.records import _CHUNK, Ordered
from taskharbor.model.entropy import Entropy

MANY = 5 * _CHUNK


def filled(items: list[int]) -> tuple[Ordered[int], list[int]]:
    ordered: Ordered[int] = Ordered()
    for item in items:
        ordered.add(item)
    return ordered, sorted(items)


def is_like(ordered: Ordered[int], plain: list[int]) -> bool:
    return (list(ordered), len(ordered), ordered.first()) == (plain, len(plain), plain[0] if plain else None)


@pytest.mark.parametrize("size", [0, 1, _CHUNK, 2 * _CHUNK, 2 * _CHUNK + 1, MANY])
def test_it_holds_what_was_added_in_order_whichever_way_it_came(size):
    assert is_like(*filled(list(range(size))))
    assert is_like(*filled(list(reversed(range(size)))))


def test_it_looks_up_and_down_from_any_bound():
    ordered, plain = filled([2 * number for number in range(MANY)])

    for bound in [-1, 0, 1, 2 * _CHUNK - 2, 2 * _CHUNK, 4 * _CHUNK + 1, plain[-2], plain[-1], plain[-1] + 1]:
        assert list(ordered.above(bound)) == plain[bisect_right(plain, bound) :]
        assert list(ordered.below(bound)) == plain[: bisect_left(plain, bound)][::-1]
        assert ordered.count_to(bound) == bisect_right(plain, bound)


def test_it_stays_in_order_through_many_comings_and_goings():
    entropy, plain = Entropy(5), list[int]()
    ordered: Ordered[int] = Ordered()

    for step in range(6 * MANY):
        item = int(entropy.between(0, 4 * MANY))
        place = bisect_left(plain, item)
        if place < len(plain) and plain[place] == item:
            plain.pop(place)
            ordered.remove(item)
        elif step < 4 * MANY:
            insort(plain, item)
            ordered.add(item)

    assert is_like(ordered, plain)
    for item in list(plain):
        ordered.remove(item)
    assert is_like(ordered, [])
