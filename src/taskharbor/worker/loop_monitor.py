"""Watches the event loop from the heartbeat's thread: warns about a handler that blocks it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from contextlib import suppress

from taskharbor.events import EventBus, LoopBlocked
from taskharbor.worker.timing import Timing

_log = logging.getLogger("taskharbor.worker")

BLOCKED_SECONDS = 0.75


class LoopMonitor:
    """Pings the event loop; warns when the ping takes longer than 0.75 s."""

    def __init__(
        self, timing: Timing, loop: asyncio.AbstractEventLoop, worker_id: str, events: EventBus
    ) -> None:
        self._timing = timing
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._worker_id = worker_id
        self._events = events
        self._sent: float | None = None
        self._is_reported = False

    def look(self, is_busy: bool) -> None:
        """Called from the heartbeat's thread, about twice a second."""
        now = self._timing.monotonic()
        if self._sent is None:
            if is_busy:
                self._sent = now
                self._is_reported = False
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._came_back)
        elif now - self._sent >= BLOCKED_SECONDS and not self._is_reported:
            self._is_reported = True
            self._report(now - self._sent)

    def _came_back(self) -> None:
        self._sent = None

    def _report(self, seconds: float) -> None:
        where = _innermost(self._thread_id)
        _log.warning(
            "the event loop has been blocked for %.1f s at %s; other jobs of this process wait. "
            "Make the handler a plain function (it then runs in a thread), or run_in='process'",
            seconds,
            where,
        )
        self._events.emit(LoopBlocked(worker_id=self._worker_id, seconds=seconds, where=where))


def _innermost(thread_id: int) -> str:
    frame = sys._current_frames().get(thread_id)
    if frame is None:
        return "an unknown place"
    last = traceback.extract_stack(frame)[-1]
    return f"{last.filename}:{last.lineno} in {last.name}"
