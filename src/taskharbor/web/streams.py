"""Places: how many answers without an end may be open, in all and per caller, so that none takes all."""

from __future__ import annotations

from collections import Counter

from taskharbor.web.auth import Principal
from taskharbor.web.problems import Problem

_RETRY_SECONDS = 5


class Places:
    """The places for streams of one kind."""

    def __init__(self, kind: str, most: int, most_of_one: int) -> None:
        self._kind = kind
        self._most = most
        self._most_of_one = most_of_one
        self._taken: Counter[str] = Counter()

    def take(self, principal: Principal) -> Place:
        """Raises Problem `too-busy` when there is none left, or none for this caller."""
        if self._taken.total() >= self._most:
            raise self._refusal(f"there are {self._most} {self._kind} already")
        if self._taken[principal.name] >= self._most_of_one:
            raise self._refusal(f"this caller has {self._most_of_one} {self._kind} already")
        self._taken[principal.name] += 1
        return Place(self._taken, principal.name)

    def _refusal(self, what: str) -> Problem:
        return Problem("too-busy", what, headers={"Retry-After": str(_RETRY_SECONDS)})


class Place:
    """One taken place; leaving twice is fine."""

    def __init__(self, taken: Counter[str], name: str) -> None:
        self._taken = taken
        self._name = name
        self._is_taken = True

    def leave(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._taken[self._name] -= 1
            if not self._taken[self._name]:
                del self._taken[self._name]
