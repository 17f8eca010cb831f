from __future__ import annotations

import pytest

from tests.integration.scheduler.scheduler_fixture import SchedulerHarness
from tests.integration.worker.test_on_every_store import STORES, THERE

MANY_PROCESSES = [name for name in THERE if name != "memory"]


async def _on(name, folder):
    harness = SchedulerHarness(folder, STORES[name](folder))
    async with harness.driver:
        yield harness
        harness.close()


@pytest.fixture(params=THERE)
async def harness(request, tmp_path):
    """Every store there is."""
    async for harness in _on(request.param, tmp_path):
        yield harness


@pytest.fixture(params=MANY_PROCESSES)
async def shared_harness(request, tmp_path):
    """Every store that several processes can open."""
    async for harness in _on(request.param, tmp_path):
        assert harness.driver.capabilities.multiprocess
        yield harness


@pytest.fixture
async def sqlite_harness(tmp_path):
    """For what does not depend on the store."""
    async for harness in _on("sqlite", tmp_path):
        yield harness
