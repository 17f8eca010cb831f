"""The scheduler beside a server whose store is away."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.errors import DriverUnavailable
from taskharbor.web import app as web_app
from taskharbor.web.app import create_app
from taskharbor.web.config import ServerConfig

GENEROUS_SECONDS = 30.0


class Away(Harbor):
    """A harbor whose store cannot be opened; counts how often that was tried."""

    def __init__(self) -> None:
        super().__init__("memory://")
        self.tries = 0
        self.was_tried_again = asyncio.Event()

        async def no_driver() -> Any:
            self.tries += 1
            if self.tries > 5:
                self.was_tried_again.set()
            raise DriverUnavailable("the store is out of reach", done=False)

        self.client.adriver = no_driver  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_app, "_RETRY_SECONDS", 0.001)


async def test_a_store_that_is_away_is_logged_once_and_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    harbor = Away()
    app = create_app(harbor, ServerConfig(scheduler=True), local_callers_are_admin=True)
    async with asyncio.timeout(GENEROUS_SECONDS), app.running():
        await harbor.was_tried_again.wait()

    logged = [record for record in caplog.records if "the store" in record.getMessage()]
    assert [(record.levelno, record.exc_info) for record in logged] == [(logging.WARNING, None)]
    assert "the store is out of reach" in logged[0].getMessage()


async def test_a_server_that_stops_does_not_try_again(caplog: pytest.LogCaptureFixture) -> None:
    harbor = Away()
    app = create_app(harbor, ServerConfig(scheduler=True), local_callers_are_admin=True)
    app.stop()
    async with asyncio.timeout(GENEROUS_SECONDS):
        await web_app._run_scheduler(app.service)

    assert harbor.tries == 0
