"""Which process of pytest-xdist runs which test: what `--dist loadgroup` means here.

The one of pytest-xdist 3.8 forgets its groups under pytest 9.2 (pytest-xdist issue 1386). It also walks over
all that a process has done whenever that process ends a test: among thousands of tests, half of its own time.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

TOGETHER = (
    "tests/browser/",  # a browser, and servers with filled stores
    "tests/chaos/",  # servers; and their own processes keep the cores busy
    "tests/integration/postgres/test_limits.py",  # sixteen processes
)
"""What takes long to start serves all tests of a place: one process runs them, before any other test."""


class Sharing(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out the places of `TOGETHER` as a whole, then every other test by itself, in order."""

    def _split_scope(self, nodeid: str) -> str:
        return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)

    def schedule(self) -> None:
        """Begin: every process has collected the same tests, which are known to it by their numbers."""
        collected = next(iter(self.registered_collections.values()))
        self._numbers = {nodeid: number for number, nodeid in enumerate(collected)}
        super().schedule()

    def _assign_work_unit(self, node: Any) -> None:
        scope, unit = self.workqueue.popitem(last=False)
        self.assigned_work[node][scope] = unit
        node.send_runtest_some([self._numbers[nodeid] for nodeid, is_done in unit.items() if not is_done])

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """What is done is forgotten; then the process may get more."""
        nodeid = self.registered_collections[node][item_index]
        units, scope = self.assigned_work[node], self._split_scope(nodeid)
        units[scope][nodeid] = True
        if all(units[scope].values()):
            del units[scope]
        self._reschedule(node)
