"""Fixtures for tests of programs that use TaskHarbor. Installed with it; nothing happens until used.

# pyproject.toml
[tool.pytest.ini_options]
taskharbor_app = "app:harbor"

def test_a_new_user_is_welcomed(harbor, clock):
    register("ada@example.com")
    assert_enqueued(harbor, send_welcome)
    drain(harbor)
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from taskharbor.harbor.harbor import Harbor
    from taskharbor.testing.clock import SimulatedClock

APP = "taskharbor_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        APP, "module:attribute of the harbor that the `harbor` fixture puts into memory", default=""
    )


@pytest.fixture
def clock() -> SimulatedClock:
    """A clock that moves only when the test moves it."""
    from taskharbor.testing.clock import SimulatedClock

    return SimulatedClock()


@pytest.fixture
def harbor(request: pytest.FixtureRequest, clock: SimulatedClock) -> Iterator[Harbor]:
    """The program's harbor (`taskharbor_app`), or a new one, on an empty store in memory under `clock`."""
    from taskharbor.testing.store import in_memory

    with in_memory(_harbor_of(str(request.config.getini(APP))), clock=clock) as harbor:
        yield harbor


def _harbor_of(app: str) -> Harbor:
    from taskharbor.harbor.harbor import Harbor

    if not app:
        return Harbor("memory://")
    module, _, name = app.partition(":")
    try:
        found = getattr(importlib.import_module(module), name or "harbor", None)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise pytest.UsageError(
            f"{APP} = {app!r}: there is no module {error.name!r}; if it is in the folder of pyproject.toml, "
            'add pythonpath = ["."] to [tool.pytest.ini_options]'
        ) from None
    if not isinstance(found, Harbor):
        raise pytest.UsageError(f"{APP} = {app!r} does not name a Harbor")
    return found
