"""Named points at which a process may die: before a call leaves, after it was stored, around a handler."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from taskharbor.testing.simulator.loop import Process

if TYPE_CHECKING:
    from taskharbor.testing.simulator.world import World

WORKER_POINTS = (
    "reserve.sent",
    "reserve.stored",
    "exchange.sent",
    "exchange.stored",
    "settle.sent",
    "settle.stored",
    "extend_leases.sent",
    "extend_leases.stored",
    "handler.starts",
    "handler.ended",
)
CLIENT_POINTS = ("enqueue.sent", "enqueue.stored")
SCHEDULER_POINTS = (
    "reclaim.sent",
    "reclaim.stored",
    "hold_role.stored",
    "advance_schedule.sent",
    "advance_schedule.stored",
)
POINTS = WORKER_POINTS + CLIENT_POINTS + SCHEDULER_POINTS


class Points:
    """Counts how often processes pass each point, and sometimes kills one there."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._choices = world.choices.split("points")
        self._rate = world.plan.point_rate if "points" in world.plan.faults else 0.0
        self.fired: Counter[str] = Counter()

    async def pass_by(self, point: str, process: Process) -> None:
        """From inside the process itself: it goes no further when it dies here."""
        if self._strikes(point, process):
            never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await never

    def reached(self, point: str, process: Process) -> None:
        """From inside the store."""
        self._strikes(point, process)

    def _strikes(self, point: str, process: Process) -> bool:
        if not self._rate or point not in POINTS or not self._world.has_faults or process.is_dead:
            return False
        if not self._choices.chance(self._rate) or not self._world.allows("point", process.name, point):
            return False
        self.fired[point] += 1
        self._world.kill(process.name)
        return True
