"""Entries of a store that lead to no job: dropped when found, logged once, counted.

Our own steps never leave one. They remain when records were deleted from the store by hand or by accident.
Left in place, they would block every claim and sweep.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

_log = logging.getLogger("taskharbor.store")

_NAMED = 10


class Orphans:
    """Entries that this handle dropped and that were not counted yet. Thread-safe."""

    def __init__(self) -> None:
        self._uncounted = 0

    def __bool__(self) -> bool:
        return self._uncounted > 0

    def note(self, names: Sequence[str]) -> None:
        """Log and count dropped entries, by what is left of their names."""
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
        """The number since the last call, which the caller counts from now on."""
        count, self._uncounted = self._uncounted, 0
        return count
