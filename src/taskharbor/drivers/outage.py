"""A store that does not answer, logged once for the whole process.

Worker, heartbeat, scheduler, wake-ups and server meet the same outage many times a minute. They all report
failures and successes here: one line when the store goes away, a few while it is away, one when it is
back. A store that comes and goes within seconds is not logged each time.
"""

from __future__ import annotations

import logging
import threading

from taskharbor.model.clock import Clock

_log = logging.getLogger("taskharbor.store")

REMINDERS_SECONDS = (10.0, 60.0)
"""When it is logged again; after the last of these, at intervals five times as long."""
QUIET_SECONDS = 10.0
"""An outage that begins this soon after the last one is logged only if it lasts as long."""


class Outage:
    """Tracks whether a store answers; shared by all handles of one store. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.is_away = False
        """Whether the last call failed. Every claim reads it, so it is an attribute."""
        self._since = 0.0
        self._back_at = float("-inf")
        self._failed = 0
        self._logged = 0
        self._remind_at = 0.0

    def failed(self, what: str, error: BaseException) -> None:
        """A call (`what`) failed because the store did not answer."""
        cause = str(error) or type(error).__name__
        with self._lock:
            now = self._clock.monotonic()
            if not self.is_away:
                self._begin(now)
            self._failed += 1
            away, level = now - self._since, logging.DEBUG
            if away >= self._remind_at:
                level, self._logged = logging.WARNING, self._logged + 1
                self._remind_at = self._next_reminder(away)
        if level == logging.WARNING and away == 0:
            _log.warning("the store does not answer (%s): %s; work goes on when it is back", what, cause)
        else:
            words = "the store has not answered for %.0f s, %d calls failed; the last (%s): %s"
            _log.log(level, words, away, self._failed, what, cause)

    def answered(self) -> None:
        """A call was answered."""
        with self._lock:
            if not self.is_away:
                return
            now = self._clock.monotonic()
            away, failed, was_logged = now - self._since, self._failed, self._logged > 0
            self.is_away, self._back_at = False, now
        level = logging.WARNING if was_logged else logging.DEBUG
        _log.log(level, "the store answers again after %.1f s; %d calls had failed", away, failed)

    def _begin(self, now: float) -> None:
        self.is_away = True
        self._since, self._failed, self._logged = now, 0, 0
        self._remind_at = QUIET_SECONDS if now - self._back_at < QUIET_SECONDS else 0.0

    def _next_reminder(self, away: float) -> float:
        for seconds in REMINDERS_SECONDS:
            if away < seconds:
                return seconds
        return away + 5 * REMINDERS_SECONDS[-1]
