"""What the kit asks of stores that outlive their handles, through a server over SQLite."""

from collections.abc import AsyncIterator

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.testing.conformance.durability import *  # noqa: F403
from taskharbor.testing.conformance.lifecycle import *  # noqa: F403
from taskharbor.testing.conformance.wakeups import *  # noqa: F403
from taskharbor.testing.http_server import fresh_http_url


@pytest.fixture
def driver_url() -> str:
    return fresh_http_url(durable=True)


@pytest.fixture
def other_namespace_url(driver_url: str) -> str:
    return f"{driver_url}-other"


@pytest.fixture
async def driver(driver_url: str) -> AsyncIterator[Driver]:
    async with connect(driver_url) as driver:
        yield driver
