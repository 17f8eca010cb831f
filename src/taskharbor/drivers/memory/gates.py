"""What may keep a job from being taken in or handed out: pause, rates, max_running."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from taskharbor.drivers.memory.records import AFTER_ALL, Records
from taskharbor.drivers.messages import Claim
from taskharbor.errors import RateLimited
from taskharbor.model.clock import instant, micros
from taskharbor.model.limits import RateLimit, Window, free_at
from taskharbor.model.queue import (
    EVERY_QUEUE,
    NO_RULES,
    QueueRules,
    QueueSettings,
    rules_of,
)

Budget = tuple[str, str]  # ("enqueue" | "execute" | "worker", queue or worker)


class Gates:
    """The settings of every queue and what was spent of its budgets."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._settings: dict[str, QueueSettings] = {}
        self._rules: dict[str, QueueRules] = {}
        self._windows: dict[Budget, Window] = {}

    # ------------------------------------------------------------------ settings

    def configure(self, settings: QueueSettings) -> QueueRules:
        merged = settings.on_top_of(self._settings.get(settings.queue))
        self._settings[settings.queue] = merged
        self._rules[settings.queue] = rules = rules_of(merged)
        for what, rate in (("enqueue", rules.enqueue_rate), ("execute", rules.execute_rate)):
            if rate is None:  # an unset budget remembers nothing
                self._windows.pop((what, settings.queue), None)
        return rules

    def configured(self) -> set[str]:
        return set(self._rules)

    def rules(self, queue: str) -> QueueRules:
        return self._rules.get(queue, NO_RULES)

    # ------------------------------------------------------------------ in

    @property
    def limit_enqueues(self) -> bool:
        return any(rules.enqueue_rate is not None for rules in self._rules.values())

    def admit(self, spends: list[tuple[str, RateLimit, int]], now: datetime) -> None:
        """Spend these enqueue budgets, all or none."""
        windows = [(self._window(("enqueue", queue)), count) for queue, _, count in spends]
        for (queue, rate, count), (window, _) in zip(spends, windows, strict=True):
            if wait := window.wait_us(rate, count, micros(now)):
                raise RateLimited(queue, timedelta(microseconds=wait))
        for window, count in windows:
            window.spend(count, micros(now))

    # ------------------------------------------------------------------ out

    def room(self, queue: str, claim: Claim, now: datetime) -> int:
        """How many jobs of this queue may be handed out now; at most `claim.limit`."""
        if not self._rules and claim.rate is None:  # unset gates cost nothing
            return claim.limit
        room = claim.limit
        for name in (queue, EVERY_QUEUE):
            rules = self.rules(name)
            if rules.paused:
                return 0
            if rules.max_running is not None:
                room = min(room, rules.max_running - self._running(name, now))
        for budget, rate in self._execute_budgets(queue, claim):
            room = min(room, self._window(budget).room(rate, micros(now)))
        return max(room, 0)

    def spend(self, queue: str, claim: Claim, count: int, now: datetime) -> None:
        if count and (self._rules or claim.rate is not None):
            for budget, _ in self._execute_budgets(queue, claim):
                self._window(budget).spend(count, micros(now))

    def throttled_until(self, queue: str, now: datetime) -> datetime | None:
        """When the spent execute rate of this level has room again."""
        rate = self.rules(queue).execute_rate
        window = self._windows.get(("execute", queue))
        if rate is None or window is None:
            return None
        until = free_at(rate, window.entries, micros(now))
        return None if until is None else instant(until)

    def _execute_budgets(self, queue: str, claim: Claim) -> Iterator[tuple[Budget, RateLimit]]:
        for name in (queue, EVERY_QUEUE):
            if (rate := self.rules(name).execute_rate) is not None:
                yield ("execute", name), rate
        if claim.rate is not None:
            yield ("worker", claim.worker_id), claim.rate

    def _running(self, queue: str, now: datetime) -> int:
        """Unexpired leases: one that ran out stops counting at that instant, reclaimed or not."""
        if queue == EVERY_QUEUE:
            return sum(self._running(name, now) for name in list(self._records.leases))
        leases = self._records.leases[queue]
        return len(leases) - leases.count_to((now, AFTER_ALL))

    def _window(self, budget: Budget) -> Window:
        return self._windows.setdefault(budget, Window())
