"""Faults of processes and of the store, at moments drawn from the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.testing.simulator.actors import WorkerActor
from taskharbor.testing.simulator.loop import SECOND, Process

if TYPE_CHECKING:
    from taskharbor.testing.simulator.world import World


class FaultInjector:
    """Kills, freezes and slows down processes and stops the store, until `end` is called."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._choices = world.choices.split("faults")
        self._is_over = False
        self._context = world.loop.context_of(Process("faults"))

    def begin(self) -> None:
        if self._world.has_faults:
            self._later()
        if self._world.plan.has("restarts"):
            self._restart_later()

    def end(self) -> None:
        self._is_over = True
        self._world.network.is_out = False
        for actor in self._world.actors.values():
            actor.process.slow_us = 0

    def _later(self) -> None:
        longest = self._world.plan.fault_seconds
        wait = self._choices.seconds(longest / 12, longest)
        self._world.loop.call_later(wait, self._strike, context=self._context)

    def _strike(self) -> None:
        if self._is_over:
            return
        kinds = [kind for kind in _KINDS if kind in self._world.plan.faults]
        if kinds:
            kind = self._choices.pick(kinds)
            victim = self._choices.pick(sorted(self._world.actors))
            getattr(self, f"_{kind}")(victim)
            self._later()

    def _kill(self, victim: str) -> None:
        if self._world.allows("kill", victim, ""):
            self._world.kill(victim)

    def _freeze(self, victim: str) -> None:
        us = round(self._choices.seconds(0.001, 3 * self._world.plan.lease_seconds) * SECOND)
        if self._world.allows("freeze", victim, f"for {us / SECOND:.3f} s"):
            self._world.loop.freeze(self._world.actors[victim].process, us)

    def _slow(self, victim: str) -> None:
        cost = self._choices.whole(1_000, 100_000)
        if self._world.allows("slow", victim, f"{cost / 1000:.0f} ms a step"):
            process = self._world.actors[victim].process
            process.slow_us = cost
            self._world.loop.call_later(
                self._choices.seconds(1, 10), self._speed_up, victim, process, context=self._context
            )

    def _speed_up(self, victim: str, process: Process) -> None:
        """A lease that runs out meanwhile does so for a reason: that it was slow until now is noted, too."""
        process.slow_us = 0
        if not self._world.is_over:
            self._world.mark_fault(victim, "slow until now")

    def _outage(self, victim: str) -> None:
        seconds = self._choices.seconds(0.1, 2 * self._world.plan.lease_seconds)
        if self._world.allows("outage", "store", f"for {seconds:.3f} s"):
            self._world.network.is_out = True
            self._world.loop.call_later(seconds, self._back, context=self._context)

    def _back(self) -> None:
        self._world.network.is_out = False
        self._world.allows("back", "store", "in order again")

    def _step(self, victim: str) -> None:
        us = self._choices.whole(1, round(2 * self._world.plan.lease_seconds * SECOND))
        if self._world.allows("step", "store", f"clock {us / SECOND:.3f} s ahead"):
            self._world.store_clock.offset_us += us

    def _step_back(self, victim: str) -> None:
        us = self._choices.whole(1, round(2 * self._world.plan.lease_seconds * SECOND))
        if self._world.allows("step_back", "store", f"clock {us / SECOND:.3f} s back"):
            self._world.store_clock.offset_us -= us

    # ------------------------------------------------------------------ stops, which are no faults

    def _restart_later(self) -> None:
        longest = self._world.plan.fault_seconds * 5 / 3
        self._world.loop.call_later(
            self._choices.seconds(longest / 5, longest), self._restart, context=self._context
        )

    def _restart(self) -> None:
        if self._is_over:
            return
        workers = [actor for _, actor in sorted(self._world.actors.items()) if isinstance(actor, WorkerActor)]
        self._choices.pick(workers).stop()
        self._restart_later()


_KINDS = ("kill", "freeze", "slow", "outage", "step", "step_back")
