"""Rate limits: the exact sliding window, as plain arithmetic over a log of (instant, count).

No window (t, t + per], wherever it starts, sees more than `count`. An event at `a` therefore
leaves the window exactly at `a + per`.

A clock that goes back meets entries of its future. They count, so that nothing is given twice, but not until
that future comes: one `per` after the clock was first seen behind them they are over. So a clock that is set
back by hours stops nothing for longer than one window.
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
    live = [
        (at if at < now_us + rate.per_us else now_us, count)  # a clock that went back far
        for at, count in entries
        if at > now_us - rate.per_us
    ]
    missing = sum(count for _, count in live) - rate.count + 1
    for at, count in live if missing > 0 else ():
        missing -= count
        if missing <= 0:
            return at + rate.per_us
    return None


class Window:
    """The spent part of one budget. Amortised O(1): entries enter once and leave once."""

    def __init__(self) -> None:
        self.entries: deque[tuple[int, int]] = deque()  # (instant in µs, how many), oldest first
        self.spent = 0
        self._behind_since: int | None = None  # when the clock was first seen behind the newest entry

    def room(self, rate: RateLimit, now_us: int) -> int:
        """How many more may happen at `now`."""
        self._forget(rate, now_us)
        return max(rate.count - self.spent, 0)

    def spend(self, count: int, now_us: int) -> None:
        future: list[tuple[int, int]] = []  # of a clock that went back: the log stays in order
        while self.entries and self.entries[-1][0] > now_us:
            future.append(self.entries.pop())
        if self.entries and self.entries[-1][0] == now_us:
            self.entries.append((now_us, self.entries.pop()[1] + count))
        else:
            self.entries.append((now_us, count))
        self.entries.extend(reversed(future))
        self.spent += count

    def wait_us(self, rate: RateLimit, wanted: int, now_us: int) -> int:
        """How long until `wanted` fit, in µs; 0 when they fit now."""
        self._forget(rate, now_us)
        missing = wanted + self.spent - rate.count  # a rate that was lowered may be spent more than once over
        for leaves_at, count in sorted((self._left(at, rate), count) for at, count in self.entries):
            if missing <= 0:
                break
            missing -= count
            if missing <= 0:
                return max(leaves_at - now_us, 0)
        return 0

    def _left(self, at: int, rate: RateLimit) -> int:
        """When an entry leaves the window. One of the near future has its own time before that is over."""
        since = self._behind_since
        return rate.per_us + (since if since is not None and at >= since + rate.per_us else at)

    def _forget(self, rate: RateLimit, now_us: int) -> None:
        while self.entries and self.entries[0][0] <= now_us - rate.per_us:
            self.spent -= self.entries.popleft()[1]
        if not self.entries or self.entries[-1][0] <= now_us:
            self._behind_since = None
        elif self._behind_since is None or self._behind_since > now_us:
            self._behind_since = now_us
        elif now_us >= self._behind_since + rate.per_us:
            while self.entries and self.entries[-1][0] > now_us:
                self.spent -= self.entries.pop()[1]
            self._behind_since = None
