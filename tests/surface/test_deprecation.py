"""What goes away says so first, and goes when announced."""

import ast
import warnings
from pathlib import Path

import pytest

from taskharbor import __version__
from taskharbor.errors import TaskHarborDeprecationWarning

SOURCE = Path(__file__).parents[2] / "src" / "taskharbor"


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def removals(source: str) -> list[str]:
    """The versions in which a module's deprecated names go away."""
    return [
        str(keyword.value.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "TaskHarborDeprecationWarning"
        for keyword in node.keywords
        if keyword.arg == "removed_in" and isinstance(keyword.value, ast.Constant)
    ]


def overdue(source: str, version: str) -> list[str]:
    return [removal for removal in removals(source) if numbers(removal) <= numbers(version)]


def test_nothing_stays_longer_than_announced() -> None:
    found = {path.name: overdue(path.read_text("utf-8"), __version__) for path in SOURCE.rglob("*.py")}

    assert {name: late for name, late in found.items() if late} == {}


def test_an_overdue_name_is_found() -> None:
    source = 'warn(TaskHarborDeprecationWarning("a", instead="b", removed_in="0.3"))'

    assert overdue(source, "0.2.5") == []
    assert overdue(source, "0.3.0") == ["0.3"]


def test_the_warning_names_the_replacement_and_the_version() -> None:
    with pytest.warns(
        DeprecationWarning, match=r"Harbor\.old is deprecated and goes away in .* 0\.3; use Harbor\.new"
    ):
        warnings.warn(
            TaskHarborDeprecationWarning("Harbor.old", instead="Harbor.new", removed_in="0.3"), stacklevel=1
        )
