from __future__ import annotations

import pytest

from tests.integration.worker.ground import Ground


@pytest.fixture
async def ground(tmp_path):
    ground = Ground(tmp_path)
    async with ground.driver:
        yield ground
        ground.close()
