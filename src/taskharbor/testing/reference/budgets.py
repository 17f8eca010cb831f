"""What may hold a job back in the reference model: pause, max_running, and rates as lists of instants."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from taskharbor.drivers.messages import Claim, QueueInfo
from taskharbor.errors import InvalidArgument, RateLimited
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueRules, QueueSettings
from taskharbor.model.state import JobState
from taskharbor.testing.reference.jobs import JobTable


class Gated(JobTable):
    """The job table with limits, rates and pauses in front of it."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: dict[tuple[str, str], list[datetime]] = {}  # (budget, whose): one instant per job
        self.worker_rates: dict[str, RateLimit] = {}

    def configure_queue(self, settings: QueueSettings) -> QueueRules:
        rules = self.settings.setdefault(settings.queue, {})
        for name in QueueRules.__struct_fields__:
            if (value := getattr(settings, name)) is not msgspec.UNSET:
                rules[name] = value
        for what in ("enqueue", "execute"):
            if rules.get(f"{what}_rate") is None:  # an unset budget remembers nothing
                self.spent.pop((what, settings.queue), None)
        return QueueRules(**rules)

    def _admit(self, arriving: Mapping[str, int], now: datetime) -> None:
        """Spend the enqueue budgets of a whole call, or nothing of them."""
        rates = self._enqueue_rates(arriving)
        for queue, rate in rates.items():
            if arriving[queue] > rate.count:
                raise InvalidArgument(f"{arriving[queue]} at once never pass the rate of {queue}")
        for queue, wait in self._waits(arriving, now).items():
            raise RateLimited(queue, wait)
        for queue in rates:
            self._spend("enqueue", queue, arriving[queue], now)

    def _waits(self, arriving: Mapping[str, int], now: datetime) -> dict[str, timedelta]:
        """Every enqueue budget that so many jobs are over, and how long until they would fit."""
        return {
            queue: self._wait("enqueue", queue, rate, arriving[queue], now)
            for queue, rate in self._enqueue_rates(arriving).items()
            if self._room("enqueue", queue, rate, now) < arriving[queue] <= rate.count
        }

    def _enqueue_rates(self, queues: Mapping[str, int]) -> dict[str, RateLimit]:
        rates = {queue: self._rule(queue, "enqueue_rate") for queue in queues}
        return {queue: rate for queue, rate in rates.items() if rate is not None}

    def _gate(self, queue: str, claim: Claim, now: datetime) -> int:
        room = claim.limit
        for level in (queue, "*"):
            if self._rule(level, "paused"):
                return 0
            if (most := self._rule(level, "max_running")) is not None:
                room = min(room, most - self._running(level, now))
        for what, whose, rate in self._execute_budgets(queue, claim):
            room = min(room, self._room(what, whose, rate, now))
        return room

    def _execute_budgets(self, queue: str, claim: Claim) -> list[tuple[str, str, RateLimit]]:
        levels = [("execute", level, self._rule(level, "execute_rate")) for level in (queue, "*")]
        return [entry for entry in [*levels, ("worker", claim.worker_id, claim.rate)] if entry[2] is not None]

    def _running(self, level: str, now: datetime) -> int:
        """Unexpired leases of a queue, or of the harbor."""
        runs = [job for job in self.jobs.values() if job.state is JobState.RUNNING]
        return sum(job.lease_expires_at > now for job in runs if level in ("*", job.queue))

    def _room(self, what: str, whose: str, rate: RateLimit, now: datetime) -> int:
        """What is left of a budget at `now`: the window (now - per, now] counts."""
        spent = self.spent.get((what, whose), [])
        return rate.count - sum(at > now - rate.per for at in spent)

    def _wait(self, what: str, whose: str, rate: RateLimit, wanted: int, now: datetime) -> timedelta:
        """How long until so many fit: tried at each instant when one leaves the window."""
        for at in sorted(self.spent[what, whose]):
            if self._room(what, whose, rate, at + rate.per) >= wanted:
                return at + rate.per - now
        raise AssertionError("a batch that can pass passes when the window is empty")

    def _spend(self, what: str, whose: str, count: int, now: datetime) -> None:
        self.spent.setdefault((what, whose), []).extend([now] * count)

    def queues(self, now: datetime) -> list[QueueInfo]:
        names = {job.queue for job in self.listed()} | set(self.settings)
        return [
            QueueInfo(
                queue=queue,
                rules=QueueRules(**self.settings.get(queue, {})),
                counts=self._counts(queue, now),
                oldest_ready_at=min(self._ready_since(queue, now), default=None),
                throttled_until=self._throttled_until(queue, now),
            )
            for queue in sorted(names)
        ]

    def _throttled_until(self, queue: str, now: datetime) -> datetime | None:
        rate = self._rule(queue, "execute_rate")
        is_spent = rate is not None and self._room("execute", queue, rate, now) <= 0
        return now + self._wait("execute", queue, rate, 1, now) if is_spent else None

    def window_ends(self) -> set[datetime]:
        """When spent budget comes back."""
        ends: set[datetime] = set()
        for (what, whose), spent in self.spent.items():
            rate = self.worker_rates[whose] if what == "worker" else self._rule(whose, f"{what}_rate")
            ends |= {at + rate.per for at in spent}
        return ends
