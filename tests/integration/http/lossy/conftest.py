"""A server behind a proxy that loses every third reply to a change; the repeat of a call comes through."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from taskharbor.drivers import connect, wire
from taskharbor.drivers.contract import Driver
from taskharbor.testing.http_server import fresh_http_url
from tests.integration.http.http_fixture import Proxy


class LossyProxy(Proxy):
    """Loses the reply to every third change that was not sent before."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._changes = 0

    def fate_of(self, verb: str, request: bytes) -> str:
        known = wire.VERBS.get(verb)
        is_repeat = wire.REPEAT_HEADER.encode() in request
        if known is None or not known.is_change or is_repeat:
            return ""
        self._changes += 1
        return "" if self._changes % 3 else "reply"


@pytest.fixture
async def driver_url() -> AsyncIterator[str]:
    proxy = LossyProxy(fresh_http_url())
    await proxy.start()
    yield proxy.url
    await proxy.stop()


@pytest.fixture
async def driver(driver_url: str) -> AsyncIterator[Driver]:
    async with connect(driver_url) as driver:
        yield driver


@pytest.fixture
def other_namespace_url() -> None:
    """The proxy knows one harbor."""


@pytest.fixture
def lose_record() -> None:
    """Behind a server no record can be taken out."""
