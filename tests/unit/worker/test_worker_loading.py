"""From `module:name` to a worker."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import ModuleType, SimpleNamespace

import pytest

from taskharbor.drivers.loading import connect
from taskharbor.errors import ConfigurationError
from taskharbor.worker import Worker
from taskharbor.worker.worker_loading import load_worker


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("some_app")
    monkeypatch.setitem(sys.modules, "some_app", module)
    return module


def made(**options):
    return Worker(connect("memory://"), **options)


def test_a_worker_is_taken_as_it_is(app):
    app.worker = made()

    assert load_worker("some_app:worker", {"concurrency": 3}) is app.worker


@pytest.mark.parametrize("name", ["make", "harbor", "inside.harbor"])
def test_a_harbor_or_a_function_makes_one_and_gets_the_options_with_their_units(app, name):
    app.make = made
    app.harbor = SimpleNamespace(worker=made)
    app.inside = SimpleNamespace(harbor=app.harbor)

    worker = load_worker(f"some_app:{name}", {"lease": 12.5, "concurrency": 3})

    assert (worker.options.lease, worker.options.concurrency) == (timedelta(seconds=12.5), 3)


@pytest.mark.parametrize(
    ("thing", "why"),
    [(7, "neither a harbor nor a worker nor a function"), (lambda: 7, "made int, not a worker")],
)
def test_anything_else_is_refused_by_name(app, thing, why):
    app.thing = thing

    with pytest.raises(ConfigurationError, match=f"some_app:thing.*{why}"):
        load_worker("some_app:thing", {})
