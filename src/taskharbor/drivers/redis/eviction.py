"""Enqueue and claim check the server's eviction policy again, at most once every five seconds.

Eviction can be switched on while a driver is open. The server may then delete jobs, so enqueues and
claims are refused until it is switched off. Running jobs can still be settled.
"""

from __future__ import annotations

import logging
import math

from taskharbor.drivers.redis import health
from taskharbor.drivers.redis.address import Address
from taskharbor.drivers.redis.primary import Primary
from taskharbor.errors import DriverError, StoreRefused
from taskharbor.model.clock import Clock

log = logging.getLogger("taskharbor.drivers.redis")

LOOK = ("INFO", "memory")
_SECONDS = 5.0


class EvictionGuard:
    """The last known eviction policy of one server, checked again at most every five seconds."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self.next_look = math.inf if address.unsafe else clock.monotonic() + _SECONDS
        """When the next check is due. Every call reads it, so it is an attribute."""
        self.refusal: str | None = None

    def is_due(self) -> bool:
        """True if a check is due; the caller then makes it."""
        now = self._clock.monotonic()
        if now < self.next_look:
            return False
        self.next_look = now + _SECONDS
        return True

    def seen(self, reply: bytes) -> None:
        """Read the policy in the reply to LOOK."""
        before, self.refusal = self.refusal, health.evicts(health.policy_in(reply))
        if self.refusal and not before:
            log.error("%s: %s; until then no jobs are enqueued or claimed", self._address.shown, self.refusal)
        elif before and not self.refusal:
            log.warning("%s keeps its jobs again", self._address.shown)

    def check(self) -> None:
        """Raises StoreRefused if the server evicts."""
        if self.refusal:
            raise StoreRefused(self.refusal)

    async def check_on(self, primary: Primary) -> None:
        """The same, after a fresh look if one is due."""
        if self.is_due():
            try:
                self.seen(await primary.command(*LOOK))
            except DriverError:  # the verb itself meets the same error and raises it
                return
        self.check()
