from __future__ import annotations

import pytest

from tests.integration.worker.processes import ProcessHarness


@pytest.fixture
async def harness(tmp_path):
    harness = ProcessHarness(tmp_path)
    async with harness.driver:
        yield harness
        harness.close()
