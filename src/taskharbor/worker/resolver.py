"""Handlers that are found by name, when the first job of their type is claimed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from taskharbor.errors import ConfigurationError
from taskharbor.tasks import Handler

_log = logging.getLogger("taskharbor.worker")

Resolve = Callable[[str], Handler | None]
"""The type of a job → its handler; None if there is none here."""

RELEASED_FOR = timedelta(seconds=30)
"""How long a job of an unresolved type waits before another worker may claim it."""
MAX_REPORTED = 500


class Resolver:
    """Asks `resolve` once per type and remembers the answer, also that there is none."""

    def __init__(self, resolve: Resolve, add: Callable[[Handler], None], worker_id: str) -> None:
        self._resolve = resolve
        self._add = add
        self._worker_id = worker_id
        self._seen: set[str] = set()
        self.unresolved: tuple[str, ...] = ()
        """For the reports of the worker, which another thread writes: replaced, never changed."""

    def look_up(self, type: str) -> None:
        """Add the handler of this type, if there is one and it has not been asked for before."""
        if type in self._seen:
            return
        self._seen.add(type)
        try:
            handler = self._resolve(type)
            if handler is not None and handler.type != type:
                raise ConfigurationError(f"resolve({type!r}) returned the handler of {handler.type!r}")
            if handler is not None:
                self._add(handler)
        except Exception:  # noqa: BLE001 - code of the application, often an import
            _log.exception("looking for the handler of %r failed", type)
            handler = None
        if handler is None:
            self.unresolved = (*self.unresolved, type)[-MAX_REPORTED:]
            _log.warning(
                "worker %s has no handler for %r: its jobs are released for %d s each time, and nothing is "
                "counted. Start a worker whose code has it",
                self._worker_id,
                type,
                RELEASED_FOR.total_seconds(),
            )
