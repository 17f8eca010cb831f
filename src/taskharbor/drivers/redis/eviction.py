"""Whether a server that was fit for jobs still is: looked at now and then by whoever brings or takes some.

Eviction can be switched on while a driver is open. From then on the server may throw jobs away, so no more
are brought and none are taken, until it is switched off again. What runs is still settled.
"""

from __future__ import annotations

import logging

from taskharbor.drivers.redis import health
from taskharbor.drivers.redis.address import Address
from taskharbor.drivers.redis.primary import Primary
from taskharbor.errors import DriverError, StoreRefused
from taskharbor.model.clock import Clock

log = logging.getLogger("taskharbor.drivers.redis")

LOOK = ("INFO", "memory")
_SECONDS = 5.0


class EvictionGuard:
    """The last look at one server, from the open of a handle on."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._looked_at = clock.monotonic()
        self.refusal: str | None = None

    def is_due(self) -> bool:
        """Whether to look again; whoever is told so does it."""
        now = self._clock.monotonic()
        if self._address.unsafe or now - self._looked_at < _SECONDS:
            return False
        self._looked_at = now
        return True

    def seen(self, told: bytes) -> None:
        """What the server said to LOOK."""
        before, self.refusal = self.refusal, health.evicts(health.policy_in(told))
        if self.refusal and not before:
            log.error("%s: %s; until then no jobs are brought or taken", self._address.shown, self.refusal)
        elif before and not self.refusal:
            log.warning("%s keeps its jobs again", self._address.shown)

    def check(self) -> None:
        """Raises StoreRefused when the server was not fit at the last look."""
        if self.refusal:
            raise StoreRefused(self.refusal)

    async def check_on(self, primary: Primary) -> None:
        """The same, after a new look if it is time for one."""
        if self.is_due():
            try:
                self.seen(await primary.command(*LOOK))
            except DriverError:  # what comes next meets the same, and tells it
                return
        self.check()
