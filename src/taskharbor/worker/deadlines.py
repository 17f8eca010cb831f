"""The deadlines of running handlers: time limits, and how long a handler may take to stop.

Only jobs with a deadline are looked at; all others cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.worker.timing import Alarm

if TYPE_CHECKING:
    from taskharbor.worker.leased_jobs import LeasedJob
    from taskharbor.worker.run import Run


class Deadlines:
    """Reports every attempt whose deadline has passed: `run.deadline_passed(leased)`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._timing = run.timing
        self._jobs: dict[LeasedJob, None] = {}  # in the order of their start, so that a seed replays
        self._alarm = Alarm(run.timing, self.look)

    def set(self, leased: LeasedJob, ends: float) -> None:
        """Set or move the deadline of a running attempt."""
        leased.attempt.ends = ends
        leased.attempt.has_deadline = True
        self._jobs[leased] = None
        self._alarm.set(ends)

    def remove(self, leased: LeasedJob) -> None:
        leased.attempt.has_deadline = False
        self._jobs.pop(leased, None)

    def look(self) -> None:
        """Report every deadline that has passed, and sleep until the next."""
        now = self._timing.monotonic()
        for leased in [leased for leased in self._jobs if _end(leased) <= now]:
            self._run.deadline_passed(leased)
        if self._jobs:
            self._alarm.set(min(_end(leased) for leased in self._jobs))

    def close(self) -> None:
        self._alarm.clear()


def _end(leased: LeasedJob) -> float:
    assert leased.attempt.ends is not None  # noqa: S101 - `set` has given it one
    return leased.attempt.ends
