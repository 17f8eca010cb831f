"""Where the next claim of the same handle may begin: behind the jobs it has just taken.

A claim that starts at the left end of the ready index walks over every entry that was consumed and
not yet vacuumed; under a long drain, or an old snapshot, that is all of them. So the place of the last
job taken per queue and lane is remembered, for half a second at most: jobs of the same rank that
appear before it meanwhile (released, reclaimed, committed late) are found by the next look from the
left end. Higher ranks are always looked at. Not used with a `now` from outside.

A job that was handed back stands before younger ones. Whoever hands it back says so in the table `back`, and
a claim that finds something new there begins at the left end, floor or not.

A claim that found less than it wanted forgets the floor: who has time looks everywhere. Unless that look is
slow, which means that somebody's old snapshot keeps all those entries: then it is made now and then only.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from taskharbor.drivers.messages import Claim
from taskharbor.model.clock import Clock
from taskharbor.model.job import JobRecord

_FOR_SECONDS = 0.5
_COST_FACTOR = 20  # a look from the left end may take a twentieth of the time at most
_SLOW_SECONDS = 0.02  # for such a look

_MOST = 64  # lines that a floor is kept for

NO_FLOORS: tuple[Any, ...] = (None, None, None, None, None, None)


class Floors:
    """The floors of one driver handle."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shape: object = None
        self._places: dict[tuple[str, str], tuple[int, datetime, int]] = {}
        self._checked_until: datetime | None = None
        self._back: int | None = None
        self._started = 0.0
        self._until = 0.0
        self._cost = 0.0  # of the last look from the left end

    def forget(self) -> None:
        """Something may stand before the floor now: look from the left end."""
        self._until = 0.0

    def arguments(self, claim: Claim, now: datetime | None) -> Sequence[Any]:
        """The last six arguments of exchange.sql."""
        shape = (frozenset(claim.queues), frozenset(claim.lanes), claim.types)
        self._started = self._clock.monotonic()
        if now is not None or shape != self._shape or self._started >= self._until:
            self._shape = shape
            self._places.clear()
            self._until = 0.0
            return NO_FLOORS
        if not self._places:
            return (self._checked_until, None, None, None, None, self._back)
        floors = self._places.values()
        return (
            self._checked_until,
            [f"{queue}/{lane}" for queue, lane in self._places],
            [floor[0] for floor in floors],
            [floor[1] for floor in floors],
            [floor[2] for floor in floors],
            self._back,
        )

    def learn(
        self, claim: Claim, jobs: list[JobRecord], at: datetime, now: datetime | None, back: int | None = None
    ) -> None:
        """A claim came back with these jobs, in order. `back`: the newest hand-back that it knew of."""
        if now is not None:
            self.forget()
            return
        if back != self._back:  # so it began at the left end, or might have
            self._back = back
            self._places.clear()
        if self._until == 0.0:  # this was a look from the left end
            ended = self._clock.monotonic()
            self._cost = ended - self._started
            self._until = ended + max(_FOR_SECONDS, _COST_FACTOR * self._cost)
        if len(jobs) < claim.limit and self._cost < _SLOW_SECONDS:
            self.forget()
            return
        self._checked_until = at
        is_one_line = len(claim.queues) == len(claim.lanes) == 1
        for job in jobs[-1:] if is_one_line else jobs:
            if len(self._places) < _MOST or (job.queue, job.requires) in self._places:
                self._places[job.queue, job.requires] = (-job.priority, job.eligible_at, job.seq)
