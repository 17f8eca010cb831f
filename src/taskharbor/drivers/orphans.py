"""Entries of a store that lead to no job: dropped by whoever meets them, told once, counted.

No step of ours leaves one behind. They are what is left when somebody, or an accident, took records out
of a store and not what points to them. One that stayed would stand in the way of every claim and sweep.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

_log = logging.getLogger("taskharbor.store")

_NAMED = 10


class Orphans:
    """The entries that this handle dropped and nobody has counted yet. Safe from any thread."""

    def __init__(self) -> None:
        self._uncounted = 0

    def __bool__(self) -> bool:
        return self._uncounted > 0

    def note(self, names: Sequence[str]) -> None:
        """Say that these were dropped, by what is left of their names. Once, for they are gone."""
        if not names:
            return
        self._uncounted += len(names)
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        _log.error(
            "the store has lost jobs: dropped %d %s without a record: %s%s",
            len(names),
            "entry" if len(names) == 1 else "entries",
            ", ".join(names[:_NAMED]),
            more,
        )

    def take(self) -> int:
        """How many since the last time; from now on they are the caller's to count."""
        count, self._uncounted = self._uncounted, 0
        return count
