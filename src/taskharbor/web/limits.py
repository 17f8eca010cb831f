"""Limits per caller: requests per second, different queues, open streams, failed logins."""

from __future__ import annotations

import math
from collections import Counter, deque

from taskharbor.model.clock import Clock
from taskharbor.web.auth import LOOPBACK, Principal
from taskharbor.web.problems import Problem

_BURST_SECONDS = 2.0
_MAX_CALLERS = 10_000
_QUOTA_RETRY_SECONDS = 3600
_STREAM_RETRY_SECONDS = 5


class RateLimiter:
    """A token bucket per caller. It holds two seconds' worth of calls and refills steadily."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self.per_second = per_second
        self._clock = clock
        self._level: dict[str, tuple[float, float]] = {}

    def wait_seconds(self, caller: str) -> float:
        """Spend one call. Returns 0 if the caller may go ahead, else the seconds until it may."""
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
        if caller not in self._level and len(self._level) >= _MAX_CALLERS:
            # Callers are tokens. With this many, most are old and their buckets are full again.
            self._level.clear()
        self._level[caller] = (level, now)


class QueueQuota:
    """How many different queues each token may enqueue to, counted since the server started."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: dict[str, set[str]] = {}

    def spend(self, principal: Principal, queue: str) -> None:
        """Count a queue. Raises Problem `rate-limited` for one too many."""
        if principal is LOOPBACK:
            return
        seen = self._seen.setdefault(principal.name, set())
        if queue in seen:
            return
        if len(seen) >= self._most:
            raise Problem(
                "rate-limited",
                f"this token has used {self._most} different queues; nothing was stored",
                headers={"Retry-After": str(_QUOTA_RETRY_SECONDS)},
            )
        seen.add(queue)


class FailureLimit:
    """How often one address may fail to sign in: five times a minute."""

    most = 5
    seconds = 60.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[str, deque[float]] = {}

    def check(self, address: str) -> None:
        """Raises Problem `rate-limited` once the address has failed too often."""
        failed = self._failed.get(address)
        wait = 0.0 if failed is None or len(failed) < self.most else failed[0] + self.seconds
        left = wait - self._clock.monotonic()
        if left > 0:
            raise Problem(
                "rate-limited",
                f"{self.most} wrong tokens within a minute from this address; try again later",
                headers={"Retry-After": str(math.ceil(left))},
            )

    def note(self, address: str) -> None:
        """A wrong token."""
        if address not in self._failed and len(self._failed) >= _MAX_CALLERS:
            self._failed.pop(next(iter(self._failed)))
        self._failed.setdefault(address, deque(maxlen=self.most)).append(self._clock.monotonic())


class StreamSlots:
    """How many streams of one kind may be open, in all and per caller."""

    def __init__(self, kind: str, most: int, most_of_one: int) -> None:
        self._kind = kind
        self._most = most
        self._most_of_one = most_of_one
        self._taken: Counter[str] = Counter()

    def take(self, principal: Principal) -> StreamSlot:
        """Raises Problem `too-busy` if no slot is free, or this caller already has its share."""
        if self._taken.total() >= self._most:
            raise self._refusal(f"all {self._most} {self._kind} are in use")
        if self._taken[principal.name] >= self._most_of_one:
            raise self._refusal(f"this caller already has {self._most_of_one} {self._kind} open")
        self._taken[principal.name] += 1
        return StreamSlot(self._taken, principal.name)

    def _refusal(self, what: str) -> Problem:
        return Problem("too-busy", what, headers={"Retry-After": str(_STREAM_RETRY_SECONDS)})


class StreamSlot:
    """One taken slot. Releasing it twice is fine."""

    def __init__(self, taken: Counter[str], name: str) -> None:
        self._taken = taken
        self._name = name
        self._is_taken = True

    def release(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._taken[self._name] -= 1
            if not self._taken[self._name]:
                del self._taken[self._name]
