"""Which clock a worker has, and what follows from it."""

from __future__ import annotations

from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.testing.clock import SimulatedClock
from taskharbor.testing.simulator.choices import Choices
from taskharbor.testing.simulator.clocks import ProcessClock
from taskharbor.testing.simulator.loop import SimulatedLoop
from taskharbor.worker.timing import Timing


def test_only_a_clock_that_somebody_moves_does_not_run() -> None:
    """In a simulated world time goes on while a call is under way: who looks again must let it pass."""
    loop = SimulatedLoop(Choices(Entropy(1)))  # type: ignore[abstract]

    assert Timing(SimulatedClock()).is_moved_by_hand
    assert not Timing(ProcessClock(loop)).is_moved_by_hand
    assert not Timing(SystemClock()).is_moved_by_hand
