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
    from taskharbor.worker.held import Held

# After these the job is settled without waiting any longer for a handler that runs on. One that was
# cancelled is waited for until its time limit: its lease still holds, and nobody else needs the job.
_IMPATIENT = frozenset({"timeout", "shutdown"})


class Watch:
    """The deadlines of one worker's running attempts."""

    def __init__(self, timing: Timing, patience_seconds: float, give_up: Callable[[Held], None]) -> None:
        self._timing = timing
        self._patience = patience_seconds
        self._give_up = give_up
        self._watched: dict[Held, None] = {}  # in the order of their start, so that a seed replays
        self._alarm = Alarm(timing, self.look)

    def start(self, held: Held, ends: float) -> None:
        """A handler with a time limit starts, or starts anew."""
        held.ends = ends
        held.is_watched = True
        self._watched[held] = None
        self._alarm.set(ends)

    def stop(self, held: Held) -> None:
        """It has ended."""
        held.is_watched = False
        self._watched.pop(held, None)

    def tell(self, held: Held, reason: Reason, patience_seconds: float | None = None) -> None:
        """Ask a handler to stop. Told again for another reason, it keeps the first."""
        held.cancellation.set(reason)
        if held.is_over or held.started is None or held.told is not None:
            return
        held.told = self._timing.monotonic()
        if held.executor is not None:
            held.executor.stop(held)
        if held.cancellation.reason in _IMPATIENT:
            patience = self._patience if patience_seconds is None else patience_seconds
            self.start(held, held.told + patience)

    def look(self) -> None:
        """Deal with every deadline that has passed and wait for the next."""
        now = self._timing.monotonic()
        for held in [held for held in self._watched if held.ends is not None and held.ends <= now]:
            if held.told is None:
                self.tell(held, "timeout")
            else:
                self.stop(held)
                self._give_up(held)
        if self._watched:
            self._alarm.set(min(held.ends for held in self._watched if held.ends is not None))

    def close(self) -> None:
        self._alarm.clear()
