"""Loads the worker that `module:name` names."""

from __future__ import annotations

import importlib
from typing import Any

from taskharbor.errors import ConfigurationError
from taskharbor.worker.worker import Worker


def load_worker(app: str, options: dict[str, Any]) -> Worker:
    """The worker that `module:name` names: a harbor's, one made by a function, or the object itself.

    Raises:
        ConfigurationError: it is none of these.
    """
    module, _, name = app.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if isinstance(found, Worker):
        return found
    make = getattr(found, "worker", found)
    if not callable(make):
        raise ConfigurationError(f"{app!r} is neither a harbor nor a worker nor a function that makes one")
    worker = make(**options)
    if not isinstance(worker, Worker):
        raise ConfigurationError(f"{app!r} made {type(worker).__name__}, not a worker")
    return worker
