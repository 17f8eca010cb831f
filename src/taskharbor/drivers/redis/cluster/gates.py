"""Limits of the whole harbor on a cluster: counted in the harbor's slot, under a lock, before a claim.

Queues in different slots cannot be counted and claimed from in one step. A claim under a harbor-wide
limit therefore holds a lock; without such a limit no lock is taken.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import NamedTuple

from taskharbor.drivers.messages import Claim
from taskharbor.drivers.redis.cluster.queue_store import HarborSlot, QueueStore
from taskharbor.drivers.redis.encoding import now_arg
from taskharbor.drivers.redis.settings_codec import rules_in
from taskharbor.errors import DriverUnavailable
from taskharbor.model.clock import Clock
from taskharbor.model.entropy import Entropy
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueRules

_LOCK_MS = 3_000  # a killed holder blocks the others this long; a slow one extends its lock
_WAIT_SECONDS = 5.0

Running = Callable[[], Awaitable[int]]
Kept = Callable[[], Awaitable[bool]]
"""True if the caller still holds the lock, for long enough to make one more call."""


class EnqueueBudget(NamedTuple):
    """An amount of an enqueue rate, spent in the slot that counts it."""

    slot: HarborSlot | QueueStore
    queue: str
    key: str
    rate: RateLimit
    amount: int


class HarborGates:
    """The limits under `*`, and those of queues with parts in several slots."""

    def __init__(self, harbor: HarborSlot, clock: Clock, entropy: Entropy) -> None:
        self._harbor = harbor
        self._clock = clock
        self._entropy = entropy

    async def rules(self) -> QueueRules:
        return rules_in(await self._harbor.primary.command("HGET", self._harbor.keys.data, "R*"))

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[Kept]:
        primary, key, token = self._harbor.primary, self._harbor.keys.lock, self._entropy.token()
        asked = self._clock.monotonic()
        deadline = asked + _WAIT_SECONDS
        while not await primary.command("SET", key, token, "NX", "PX", _LOCK_MS, writes=True):
            if self._clock.monotonic() > deadline:
                raise DriverUnavailable("the harbor's limits are busy; nothing was handed out", done=False)
            await self._clock.sleep(self._entropy.between(0.001, 0.01))
            asked = self._clock.monotonic()

        async def is_kept() -> bool:
            nonlocal asked
            now = self._clock.monotonic()
            if now - asked < _LOCK_MS / 3000:
                return True
            asked = now
            return bool(await primary.run("relock", [key], token, _LOCK_MS))

        try:
            yield is_kept
        finally:
            with suppress(
                DriverUnavailable
            ):  # it ends by itself, and jobs claimed under it must reach their worker
                await primary.run("unlock", [key], token)

    async def room(self, claim: Claim, rules: QueueRules, running: Running, now: datetime | None) -> int:
        """How many jobs this claim may take, at most its limit."""
        room = claim.limit
        if rules.max_running is not None:
            room = min(room, rules.max_running - await running())
        for key, rate in self._budgets(claim, rules):
            room = min(room, await self.rate(key, rate, "room", 0, now))
        return max(room, 0)

    async def spend(self, claim: Claim, rules: QueueRules, count: int, now: datetime | None) -> None:
        for key, rate in self._budgets(claim, rules) if count else ():
            await self.rate(key, rate, "spend", count, now)

    async def rate(
        self,
        key: str,
        rate: RateLimit,
        what: str,
        count: int,
        now: datetime | None,
        slot: HarborSlot | QueueStore | None = None,
    ) -> int:
        primary = (slot or self._harbor).primary
        return int(await primary.run("rates", [key], now_arg(now), rate.count, rate.per_us, what, count))

    async def spend_or_wait(self, budget: EnqueueBudget, now: datetime | None) -> int:
        """Spend it, or answer how many microseconds must pass before that."""
        return await self.rate(budget.key, budget.rate, "admit", budget.amount, now, budget.slot)

    async def give_back(self, budget: EnqueueBudget, now: datetime | None) -> None:
        await self.rate(budget.key, budget.rate, "refund", budget.amount, now, budget.slot)

    def _budgets(self, claim: Claim, rules: QueueRules) -> list[tuple[str, RateLimit]]:
        budgets = []
        if rules.execute_rate is not None:
            budgets.append((self._harbor.keys.execute_rate, rules.execute_rate))
        if claim.rate is not None:
            budgets.append((self._harbor.keys.worker_rate(claim.worker_id), claim.rate))
        return budgets
