"""Where the next claim of the same handle may start: behind the jobs it has just taken.

A claim that starts at the left end of the index of `waiting` reads every entry that was taken but not
vacuumed yet. While a long backlog is worked off, or while an old transaction is open, none has been vacuumed.
So the place of the last job taken is remembered per queue, lane and rank, for half a second at most: jobs of
the same rank that appear before it meanwhile (committed late, or with a run_at in the past) are found by the
next claim that starts at the left end. Ranks that are not remembered are always looked at from there. Not
used with a `now` from outside.

A job that was handed back comes before younger ones. The call that hands it back adds a row to `handed_back`,
and a claim that finds a new one there starts at the left end.

A claim that comes back short clears the places, so the next one scans from the left end. If that
scan is slow, an old transaction keeps those entries: then it is made less often, for a twentieth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from taskharbor.drivers.messages import Claim
from taskharbor.model.clock import Clock
from taskharbor.model.job import JobRecord

_FOR_SECONDS = 0.5
_COST_FACTOR = 20  # a scan from the left end may take a twentieth of the time at most
_SLOW_SECONDS = 0.02  # for such a scan
_MOST = 256  # places that are remembered

LEFT_END: tuple[Any, ...] = (None, None, None, None, None, None, None)


class ClaimStart:
    """Where the claims of one driver handle start."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shape: object = None
        self._places: dict[tuple[str, int], tuple[datetime, int]] = {}  # queue/lane and rank
        self._checked_until: datetime | None = None
        self._seen: datetime | None = None  # the latest instant of the store
        self._back: int | None = None
        self._started = 0.0
        self._until = 0.0
        self._cost = 0.0  # of the last scan from the left end

    def clear(self) -> None:
        """Something may be before the places now: start at the left end."""
        self._until = 0.0

    def arguments(self, claim: Claim, now: datetime | None) -> Sequence[Any]:
        """The last seven arguments of `exchange`."""
        shape = (frozenset(claim.queues), frozenset(claim.lanes), claim.types)
        self._started = self._clock.monotonic()
        if now is not None:
            self.clear()
            return LEFT_END
        if shape != self._shape or self._started >= self._until:
            self._shape = shape
            self._places.clear()
            self._until = 0.0
            return (None, self._seen, None, None, None, None, None)
        if not self._places:
            return (self._checked_until, self._seen, None, None, None, None, self._back)
        places = sorted(self._places.items())
        return (
            self._checked_until,
            self._seen,
            [line for (line, _), _ in places],
            [rank for (_, rank), _ in places],
            [at for _, (at, _) in places],
            [seq for _, (_, seq) in places],
            self._back,
        )

    def learn(
        self, claim: Claim, jobs: list[JobRecord], at: datetime, now: datetime | None, back: int | None = None
    ) -> None:
        """A claim came back with these jobs, in order. `back`: the newest hand-back that it saw."""
        if now is not None:
            self.clear()
            return
        if back != self._back:  # so it started at the left end, or might have
            self._back = back
            self._places.clear()
        if self._until == 0.0:  # this was a scan from the left end
            ended = self._clock.monotonic()
            self._cost = ended - self._started
            self._until = ended + max(_FOR_SECONDS, _COST_FACTOR * self._cost)
        self._seen = at if self._seen is None else max(at, self._seen)
        if len(jobs) < claim.limit and self._cost < _SLOW_SECONDS:
            self.clear()
            return
        self._checked_until = at
        if (
            jobs
            and (is_one := jobs[0].priority == jobs[-1].priority)
            and len(claim.queues) == len(claim.lanes) == 1
        ):
            jobs = jobs[-1:] if is_one else jobs  # by far the most usual: all of one rank
        for job in jobs:
            place = (f"{job.queue}/{job.requires}", -job.priority)
            if len(self._places) < _MOST or place in self._places:
                self._places[place] = (job.eligible_at, job.seq)
