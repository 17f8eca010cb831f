"""The names of nodes: which are free, which one was meant, and how a circle of them is shown.

A workflow has up to 9,999 names of up to 200 characters, and a stranger may send them: nothing here may take
more than a moment, or fill more than a screen.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable

from taskharbor.errors import WorkflowError
from taskharbor.model.checks import check_name

_COMPARED = 50
_COMPARED_SIGNS = 60
_FIRST_SHOWN = 6
_LAST_SHOWN = 5


class NodeNames:
    """The names that a workflow has given away."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}
        """The last number behind each default name: the numbers before it are taken."""

    def take(self, name: str | None, default: str) -> str:
        """This name, or the default with the first number that is free.

        Raises:
            WorkflowError: another node has the name, or it looks like a path.
        """
        if name is None:
            name = self._numbered(default)
        else:
            self._check(name)
        self._taken.add(name)
        return name

    def _check(self, name: str) -> None:
        check_name(name, "the name of a node")
        if "/" in name or "[" in name:
            raise WorkflowError(f"the name of a node has no / or [, unlike {name!r}. Nothing was stored")
        if name in self._taken:
            raise WorkflowError(f"two nodes are named {name!r}. Nothing was stored")

    def _numbered(self, default: str) -> str:
        number = self._numbers.get(default, 0) + 1
        while (free := default if number == 1 else f"{default}#{number}") in self._taken:
            number += 1
        self._numbers[default] = number
        return free


def nearest(wrong: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant. Only the likeliest are compared, which takes long for each."""

    def unlike(name: str) -> tuple[bool, int]:
        return name[:2] != wrong[:2], abs(len(name) - len(wrong))

    likely = {name[:_COMPARED_SIGNS]: name for name in heapq.nsmallest(_COMPARED, names, key=unlike)}
    found = difflib.get_close_matches(wrong[:_COMPARED_SIGNS], likely, n=1)
    return likely[found[0]] if found else None


def circle(path: list[str], again: str) -> WorkflowError:
    """The error for a path that has come back to one of its nodes. It shows both ends of a long circle."""
    around = path[path.index(again) :]
    # An edge leads from what comes first to what comes after it.
    steps = [f'"{name}"' for name in (again, *reversed(around))]
    if len(steps) > _FIRST_SHOWN + 1 + _LAST_SHOWN:
        steps = [*steps[:_FIRST_SHOWN], "…", *steps[-_LAST_SHOWN:]]
    shown = " → ".join(steps)
    return WorkflowError(f"{shown} is a circle; remove one of these edges. Nothing was stored", tuple(around))
