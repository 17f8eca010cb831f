"""Seldom: what anybody can make happen, without a token, is not logged each time."""

from __future__ import annotations

from taskharbor.model.clock import Clock, SystemClock

PAUSE_SECONDS = 60.0


class Seldom:
    """Lets a line of one kind pass, and then none for a while."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._until: dict[str, float] = {}

    def may(self, kind: str) -> bool:
        now = self._clock.monotonic()
        if now < self._until.get(kind, float("-inf")):
            return False
        self._until[kind] = now + PAUSE_SECONDS
        return True
