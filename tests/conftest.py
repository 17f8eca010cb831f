"""For every test: a reason for each mark `more`, slow tests first, the usual signals for processes, no times.

A run in the background of a script, under nohup or in cron ignores SIGINT, SIGQUIT or SIGHUP, and whatever it
starts inherits that. A handler that does nothing is not inherited: this run goes on ignoring the signal, and
what it starts begins as from a terminal.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from taskharbor.testing.servers import check_tallies

# A busy machine is slow to make examples and to run them: that says nothing about the code.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")

_VARIABLE = (
    "PYTEST_IGNORED_SIGNALS"  # pytest-xdist's processes are started by the first one, and must know too
)
_SLOWEST = ("tests/property/test_drivers_match_the_model", "tests/contract/test_pairs", "tests/simulation/")
_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)


def _ignore(*_: object) -> None:
    """Instead of SIG_IGN."""


def _keep_ignoring_alone() -> None:
    inherited = {number.name for number in _SIGNALS if signal.getsignal(number) is signal.SIG_IGN}
    names = inherited | set(os.environ.get(_VARIABLE, "").split())
    for name in names:
        signal.signal(signal.Signals[name], _ignore)
    if names:
        os.environ[_VARIABLE] = " ".join(sorted(names))


_keep_ignoring_alone()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Twenty thousand tests are millions of objects that stay: no collection of garbage looks at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def tallies() -> Iterator[None]:
    """Whatever a test did to a store on Postgres: its tallies are what a recount finds."""
    yield
    check_tallies()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest first: so that the processes of `make test-more` end together."""
    for item in items:
        mark = item.get_closest_marker("more")
        if mark is not None and not (mark.args and isinstance(mark.args[0], str)):
            raise pytest.UsageError(f"{item.nodeid}: pytest.mark.more needs a reason")
    items.sort(key=lambda item: not item.nodeid.startswith(_SLOWEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `--dist loadgroup`; `Sharing` says why."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from tests.sharing import Sharing  # only where tests are shared out

    return Sharing(config, log)
