"""Help for tests: of applications that use TaskHarbor, and of drivers that serve it.

Names are loaded when they are first used: pytest imports this package at every start, for its fixtures.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "InlineHarbor",
    "SimulatedClock",
    "adrain",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain",
    "enqueued",
    "in_memory",
    "run_inline",
]

if TYPE_CHECKING:
    from taskharbor.testing.assertions import assert_enqueued, assert_not_enqueued, enqueued
    from taskharbor.testing.clock import SimulatedClock
    from taskharbor.testing.draining import adrain, drain
    from taskharbor.testing.inline import InlineHarbor, run_inline
    from taskharbor.testing.store import in_memory

_HOME_OF = {
    "InlineHarbor": "inline",
    "SimulatedClock": "clock",
    "adrain": "draining",
    "assert_enqueued": "assertions",
    "assert_not_enqueued": "assertions",
    "drain": "draining",
    "enqueued": "assertions",
    "in_memory": "store",
    "run_inline": "inline",
}

if not TYPE_CHECKING:  # the type checker would take any name for granted

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'taskharbor.testing' has no attribute {name!r}")
        value = getattr(import_module(f"taskharbor.testing.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
