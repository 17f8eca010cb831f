"""Forwards a wake-up to the next handle if this worker cannot run the jobs it was for.

A marker lists the handles that have forwarded it. A handle that finds its own name in it drops it, so a
job that no worker can run goes round once. A handle that starts to listen later misses the marker: its
parked claim finds the job within a second, or its next poll.
"""

from __future__ import annotations

from contextlib import suppress

from taskharbor.drivers.messages import Claim
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.primary import Primary
from taskharbor.errors import TaskHarborError


class WakeupForwarder:
    """Markers that one driver handle has received and not yet followed by a claim."""

    def __init__(self, primary: Primary, keys: Keys, name: str) -> None:
        self._primary = primary
        self._keys = keys
        self._name = name.encode()
        self._markers: dict[str, bytes] = {}

    def received(self, queue: str, marker: bytes) -> None:
        self._markers[queue] = marker

    async def after_claim(self, claim: Claim, count: int) -> None:
        """Called after a claim that brought `count` jobs; if any, exchange.lua has woken the next."""
        if not self._markers:
            return
        for queue in claim.queues:
            marker = self._markers.pop(queue, None)
            if marker is not None and count == 0 and self._name not in marker.split(b","):
                await self._forward(queue, claim, marker + b"," + self._name)

    async def _forward(self, queue: str, claim: Claim, marker: bytes) -> None:
        own = self._keys.queue(queue)
        keys = [self._keys.data, own.ready, own.wake]
        lanes, types = claim.lanes, claim.types or ()
        with suppress(TaskHarborError):  # wake-ups are a bonus: polling finds the rest
            await self._primary.run("forward_wakeup", keys, queue, marker, len(lanes), *lanes, *types)
