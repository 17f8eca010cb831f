from __future__ import annotations

import pytest

from tests.integration.scheduler.pier import Pier
from tests.integration.worker.test_on_every_store import STORES, THERE

MANY_PROCESSES = [name for name in THERE if name != "memory"]


async def _on(name, folder):
    pier = Pier(folder, STORES[name](folder))
    async with pier.driver:
        yield pier
        pier.close()


@pytest.fixture(params=THERE)
async def pier(request, tmp_path):
    """Every store there is."""
    async for pier in _on(request.param, tmp_path):
        yield pier


@pytest.fixture(params=MANY_PROCESSES)
async def shared_pier(request, tmp_path):
    """Every store that several processes can open."""
    async for pier in _on(request.param, tmp_path):
        assert pier.driver.capabilities.multiprocess
        yield pier


@pytest.fixture
async def ground_of_sqlite(tmp_path):
    """For what does not depend on the store."""
    async for pier in _on("sqlite", tmp_path):
        yield pier
