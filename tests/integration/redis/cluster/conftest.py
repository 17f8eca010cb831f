"""The kit on a real cluster of three primaries: queues spread over the slots.

Every run takes the topics in which a cluster differs from one server; the others run with the long
tests, because the same code was already held to them on one server.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.testing.servers import fresh_cluster_url

HERE = Path(__file__).parent
DIFFERENT = {"exchange", "failure_jobs", "idempotency", "limits", "listing", "races", "rates", "wakeups"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and isinstance(item, pytest.Function):
            topic = item.function.__module__.rpartition(".")[2]
            if item.path.name == "test_conformance.py" and topic not in DIFFERENT:
                item.add_marker(pytest.mark.long)


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
