"""Passing a wake-up on: a worker that was woken for jobs of other lanes or types than its own tells the next.

A marker names the handles that have passed it on already; the one that finds itself among them keeps it, so a
job that nobody can run goes round once. A handle that was not listening yet when it went round does not hear
of it: its standing claim finds the job within a second, or its poll where none stands.
"""

from __future__ import annotations

from contextlib import suppress

from taskharbor.drivers.messages import Claim
from taskharbor.drivers.redis.keys import Keys
from taskharbor.drivers.redis.primary import Primary
from taskharbor.errors import TaskHarborError


class WakeupForwarder:
    """The markers that one driver handle has heard and not answered by a claim yet."""

    def __init__(self, primary: Primary, keys: Keys, name: str) -> None:
        self._primary = primary
        self._keys = keys
        self._name = name.encode()
        self._markers: dict[str, bytes] = {}

    def heard(self, queue: str, marker: bytes) -> None:
        self._markers[queue] = marker

    async def after(self, claim: Claim, count: int) -> None:
        """After a claim that brought so many jobs. exchange.lua itself wakes the next when it brought any."""
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
        with suppress(TaskHarborError):  # hints are a bonus; the poll finds what they do not tell
            await self._primary.run("forward_wakeup", keys, queue, marker, len(lanes), *lanes, *types)
