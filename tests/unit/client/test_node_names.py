"""The names of nodes: free ones, the one that was meant, and circles, however many there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import pytest

from taskharbor.client.node_names import NodeNames, circle, nearest
from taskharbor.errors import WorkflowError
from tests.unit.growth import assert_linear


def test_unnamed_nodes_get_the_first_number_that_is_free():
    names = NodeNames()
    names.take("ping", "fetch")

    assert [names.take(None, "ping") for _ in range(3)] == ["ping#2", "ping#3", "ping#4"]
    assert [names.take(None, "fetch") for _ in range(2)] == ["fetch", "fetch#2"]


def test_many_unnamed_nodes_take_no_longer_each_than_few():
    def unnamed(count: int) -> None:
        names = NodeNames()
        for _ in range(count):
            names.take(None, "ping")

    assert_linear(unnamed, int)


def test_the_name_that_was_meant_is_found_among_thousands():
    names = [f"parse_{number}" for number in range(9000)]

    assert nearest("prase_42", [*names, "store"]) in names
    assert nearest("sotre", [*names, "store"]) == "store"
    assert nearest("x" * 200, names) is None
    assert nearest("y" * 199 + "z", ["y" * 200]) == "y" * 200


def test_few_and_short_names_are_compared(monkeypatch: pytest.MonkeyPatch):
    compared: list[tuple[str, list[str]]] = []

    def matches(word: str, names: Iterable[str], **_: Any) -> list[str]:
        compared.append((word, list(names)))
        return []

    monkeypatch.setattr(difflib, "get_close_matches", matches)
    nearest("a" * 200, [f"{number:05}" + "a" * 195 for number in range(9000)])
    [(word, names)] = compared
    assert 0 < len(names) <= 50
    assert max(map(len, [word, *names])) <= 60


@pytest.mark.parametrize(("size", "shown"), [(2, 3), (11, 12), (12, 11), (5000, 11)])
def test_a_circle_shows_at_most_twelve_of_its_names(size: int, shown: int):
    path = [f"n{number}" for number in range(size)]
    error = circle(["before", *path], "n0")

    assert isinstance(error, WorkflowError)
    assert str(error).count('"') == 2 * shown
    assert str(error).startswith(f'"n0" → "n{size - 1}"')
    assert '"n0" is a circle' in str(error)
    assert (" → … → " in str(error)) == (size > 11)
    assert error.nodes == tuple(path)
