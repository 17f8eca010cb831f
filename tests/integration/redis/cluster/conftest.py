"""The whole kit on a real cluster of three primaries: queues spread over the slots."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.testing.servers import fresh_cluster_url
from tests.contract.losses import from_cluster


@pytest.fixture
def driver_url() -> str:
    return fresh_cluster_url()


@pytest.fixture
async def driver(driver_url: str) -> AsyncIterator[Driver]:
    async with connect(driver_url) as driver:
        yield driver


@pytest.fixture
def other_namespace_url(driver_url: str) -> str:
    return f"{driver_url}-other"


@pytest.fixture
def lose_record(driver_url: str) -> Callable[[str], Awaitable[None]]:
    return lambda job_id: from_cluster(driver_url, job_id)
