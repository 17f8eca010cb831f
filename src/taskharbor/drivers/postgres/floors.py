"""Where the next claim of the same handle may begin: behind the jobs it has just taken.

A claim that starts at the left end of the ready index walks over every entry that was consumed and
not yet vacuumed; under a long drain, or an old snapshot, that is all of them. So the place of the last
job taken per queue and lane is remembered, for half a second at most: jobs of the same rank that
appear before it meanwhile (released, reclaimed, committed late) are found by the next look from the
left end. Higher ranks are always looked at. Not used with a `now` from outside.

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

NO_FLOORS: tuple[Any, ...] = (None, None, None, None)


class Floors:
    """The floors of one driver handle."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shape: object = None
        self._places: dict[tuple[str, str], tuple[int, datetime, int]] = {}
        self._checked_until: datetime | None = None
        self._started = 0.0
        self._until = 0.0
        self._cost = 0.0  # of the last look from the left end

    def forget(self) -> None:
        """Something may stand before the floor now: look from the left end."""
        self._until = 0.0

    def arguments(self, claim: Claim, now: datetime | None) -> Sequence[Any]:
        """The last four arguments of exchange.sql."""
        shape = (frozenset(claim.queues), frozenset(claim.lanes), claim.types)
        self._started = self._clock.monotonic()
        if now is not None or shape != self._shape or self._started >= self._until:
            self._shape = shape
            self._places.clear()
            self._until = 0.0
            return NO_FLOORS
        floors = [self._places.get((queue, lane)) for queue in claim.queues for lane in claim.lanes]
        return (
            self._checked_until,
            [None if floor is None else floor[0] for floor in floors],
            [None if floor is None else floor[1] for floor in floors],
            [None if floor is None else floor[2] for floor in floors],
        )

    def learn(self, claim: Claim, jobs: list[JobRecord], at: datetime, now: datetime | None) -> None:
        """A claim came back with these jobs, in order."""
        if now is not None:
            self.forget()
            return
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
            self._places[job.queue, job.requires] = (-job.priority, job.eligible_at, job.seq)
