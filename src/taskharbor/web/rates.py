"""Buckets: how often each caller may call. A bucket holds two seconds' worth and refills steadily."""

from __future__ import annotations

from taskharbor.model.clock import Clock

_BURST_SECONDS = 2.0
_MAX_BUCKETS = 10_000


class Buckets:
    """One bucket per caller; what one spends takes nothing from another."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self.per_second = per_second
        self._clock = clock
        self._level: dict[str, tuple[float, float]] = {}

    def wait_seconds(self, caller: str) -> float:
        """Spend one call of this caller; 0 when it was there, else how long until it is."""
        if self.per_second == 0:
            return 0.0
        now = self._clock.monotonic()
        most = max(self.per_second * _BURST_SECONDS, 1.0)
        level, seen_at = self._level.get(caller, (most, now))
        level = min(level + (now - seen_at) * self.per_second, most)
        if level >= 1.0:
            self._remember(caller, level - 1.0, now)
            return 0.0
        self._remember(caller, level, now)
        return (1.0 - level) / self.per_second

    def _remember(self, caller: str, level: float, now: float) -> None:
        if caller not in self._level and len(self._level) >= _MAX_BUCKETS:
            # Callers are tokens: so many of them are old ones, whose buckets are full again.
            self._level.clear()
        self._level[caller] = (level, now)
