"""A fresh store on a real server, as a URL and as an open driver; and servers that a test may break."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.redis import RedisDriver
from taskharbor.testing.servers import ValkeyServer, fresh_redis_url


@pytest.fixture
def store_url() -> str:
    return fresh_redis_url()


@pytest.fixture
async def driver(store_url: str) -> AsyncIterator[Driver]:
    async with RedisDriver.from_url(store_url) as driver:
        yield driver


@pytest.fixture
def own_server() -> Iterator[ValkeyServer]:
    """A server that the test may stop, kill and fill; it keeps what it acknowledged."""
    with ValkeyServer(durable=True) as server:
        yield server


@pytest.fixture
def admin(own_server: ValkeyServer) -> Iterator[Any]:
    """Another client of that server."""
    with redis.Redis.from_url(own_server.url) as client:
        yield client
