"""Help for tests: of applications that use TaskHarbor, and of drivers that serve it."""

from taskharbor.testing.assertions import assert_enqueued, assert_not_enqueued, enqueued
from taskharbor.testing.clock import SimulatedClock
from taskharbor.testing.drain import adrain, drain
from taskharbor.testing.inline import InlineHarbor
from taskharbor.testing.store import in_memory

__all__ = [
    "InlineHarbor",
    "SimulatedClock",
    "adrain",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain",
    "enqueued",
    "in_memory",
]
