"""One watch per worker: tells handlers to stop, and gives up on those that do not.

    running ──its time is over, cancelled, lease lost, shutdown──► told ──patience is over──► given up

It looks only at jobs with a time limit and at jobs that were told: all others cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from taskharbor.worker.context import Reason
from taskharbor.worker.timing import Alarm, Timing

if TYPE_CHECKING:
    from taskharbor.worker.leased_jobs import LeasedJob

# After these the job is settled without waiting any longer for a handler that runs on. One that was
# cancelled is waited for until its time limit: its lease still holds, and nobody else needs the job.
_IMPATIENT = frozenset({"timeout", "shutdown"})


class Deadlines:
    """The deadlines of one worker's running attempts."""

    def __init__(self, timing: Timing, patience_seconds: float, give_up: Callable[[LeasedJob], None]) -> None:
        self._timing = timing
        self._patience = patience_seconds
        self._give_up = give_up
        self._watched: dict[LeasedJob, None] = {}  # in the order of their start, so that a seed replays
        self._alarm = Alarm(timing, self.look)

    def start(self, leased: LeasedJob, ends: float) -> None:
        """A handler with a time limit starts, or starts anew."""
        leased.ends = ends
        leased.is_watched = True
        self._watched[leased] = None
        self._alarm.set(ends)

    def stop(self, leased: LeasedJob) -> None:
        """It has ended."""
        leased.is_watched = False
        self._watched.pop(leased, None)

    def tell(self, leased: LeasedJob, reason: Reason, patience_seconds: float | None = None) -> None:
        """Ask a handler to stop. Told again for another reason, it keeps the first."""
        leased.cancellation.set(reason)
        if leased.is_over or leased.started is None or leased.told is not None:
            return
        leased.told = self._timing.monotonic()
        if leased.executor is not None:
            leased.executor.stop(leased)
        if leased.cancellation.reason in _IMPATIENT:
            patience = self._patience if patience_seconds is None else patience_seconds
            self.start(leased, leased.told + patience)

    def look(self) -> None:
        """Deal with every deadline that has passed and wait for the next."""
        now = self._timing.monotonic()
        for leased in [leased for leased in self._watched if leased.ends is not None and leased.ends <= now]:
            if leased.told is None:
                self.tell(leased, "timeout")
            else:
                self.stop(leased)
                self._give_up(leased)
        if self._watched:
            self._alarm.set(min(leased.ends for leased in self._watched if leased.ends is not None))

    def close(self) -> None:
        self._alarm.clear()
