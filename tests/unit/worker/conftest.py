from __future__ import annotations

import pytest

from taskharbor.model.entropy import Entropy
from taskharbor.testing.clock import SimulatedClock
from tests.unit.worker.worker_fixture import FaultyDriver, WorkerHarness


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
async def harness(clock: SimulatedClock):
    """A memory store in virtual time, with workers on it."""
    driver = FaultyDriver(clock=clock, entropy=Entropy(1))
    async with driver:
        harness = WorkerHarness(driver, clock)
        yield harness
        await harness.close()
