"""Workers from end to end, behind a pooler in transaction mode."""

from collections.abc import AsyncIterator

import pytest

from taskharbor.drivers.loading import connect
from tests.integration.worker.test_on_every_store import *  # noqa: F403
from tests.integration.worker.test_on_every_store import Site


@pytest.fixture  # type: ignore[no-redef]  # in the place of the one for every store
async def site(driver_url: str) -> AsyncIterator[Site]:
    async with connect(driver_url) as driver:
        yield Site(driver)
