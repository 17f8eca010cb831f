from __future__ import annotations

import pytest

from taskharbor.model.entropy import Entropy
from taskharbor.testing.clock import SimulatedClock
from tests.unit.worker.yard import FaultyDriver, Yard


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
async def yard(clock: SimulatedClock):
    """A memory store in virtual time, with workers on it."""
    driver = FaultyDriver(clock=clock, entropy=Entropy(1))
    async with driver:
        yard = Yard(driver, clock)
        yield yard
        await yard.close()
