"""Rate limits: the exact sliding window, as plain arithmetic over a log of (instant, count).

No window (t, t + per], wherever it starts, sees more than `count`. An event at `a` therefore
leaves the window exactly at `a + per`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import timedelta

import msgspec

from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import check_count, check_span
from taskharbor.model.clock import span_micros


class RateLimit(msgspec.Struct, frozen=True):
    """At most `count` in any span of length `per`."""

    count: int
    per: timedelta

    @property
    def per_us(self) -> int:
        return span_micros(self.per)


def check_rate(rate: object, what: str) -> None:
    if not isinstance(rate, RateLimit):
        raise InvalidArgument(f"{what} must be a RateLimit(count, per)")
    check_count(rate.count, f"{what}.count", least=1)
    check_span(rate.per, f"{what}.per", least=timedelta(microseconds=1))


def free_at(rate: RateLimit, entries: Iterable[tuple[int, int]], now_us: int) -> int | None:
    """When a spent budget has room for one more, from its log of (instant, count); None: it has now."""
    live = [(at, count) for at, count in entries if at > now_us - rate.per_us]
    missing = sum(count for _, count in live) - rate.count + 1
    for at, count in live if missing > 0 else ():
        missing -= count
        if missing <= 0:
            return at + rate.per_us
    return None


class Window:
    """The spent part of one budget. Amortised O(1): entries enter once and leave once.

    A clock that steps back frees nothing: entries from the future still count.
    """

    def __init__(self) -> None:
        self.entries: deque[tuple[int, int]] = deque()  # (instant in µs, how many), oldest first
        self.spent = 0

    def room(self, rate: RateLimit, now_us: int) -> int:
        """How many more may happen at `now`."""
        self._forget(now_us - rate.per_us)
        return max(rate.count - self.spent, 0)

    def spend(self, count: int, now_us: int) -> None:
        if self.entries and self.entries[-1][0] >= now_us:
            # At or behind the newest entry: joining it keeps the log in order and errs on the safe side.
            now_us, before = self.entries.pop()
            self.entries.append((now_us, before + count))
        else:
            self.entries.append((now_us, count))
        self.spent += count

    def wait_us(self, rate: RateLimit, wanted: int, now_us: int) -> int:
        """How long until `wanted` fit, in µs; 0 when they fit now."""
        self._forget(now_us - rate.per_us)
        missing = wanted + self.spent - rate.count  # a rate that was lowered may be spent more than once over
        for at, count in self.entries:
            if missing <= 0:
                break
            missing -= count
            wait = at + rate.per_us - now_us
            if missing <= 0:
                return max(wait, 0)
        return 0

    def _forget(self, until_us: int) -> None:
        while self.entries and self.entries[0][0] <= until_us:
            self.spent -= self.entries.popleft()[1]
