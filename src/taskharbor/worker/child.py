"""One worker process of a supervisor: `python -m taskharbor.worker.child PARENT_PID`, settings on stdin."""

from __future__ import annotations

import importlib
import logging
import sys
from datetime import timedelta
from typing import Any

import msgspec

from taskharbor.errors import ConfigurationError
from taskharbor.worker.executors.families import die_with_parent
from taskharbor.worker.supervisor import MISCONFIGURED, RECYCLED, SupervisorConfig
from taskharbor.worker.worker import Worker

_log = logging.getLogger("taskharbor.worker")

_DURATIONS = ("lease", "grace", "heartbeat", "poll", "patience")


def main() -> int:
    die_with_parent(int(sys.argv[1]))
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=SupervisorConfig)
    logging.basicConfig(level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.path[:0] = [folder for folder in config.path if folder not in sys.path]
    try:
        worker = build_worker(config.app, config.options)
    except Exception:  # noqa: BLE001 - an app may raise anything while it is imported
        _log.exception("cannot start %s", config.app)
        return MISCONFIGURED
    try:
        why = worker.run(until_idle=config.until_idle)
    except ConfigurationError as error:
        _log.error("cannot start %s: %s", config.app, error)
        return MISCONFIGURED
    return RECYCLED if why == "recycle" else 0


def build_worker(app: str, options: dict[str, Any]) -> Worker:
    """The worker that `module:name` stands for: a harbor's, one made by a function, or that very one.

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
    worker = make(**{key: _spanned(key, value) for key, value in options.items()})
    if not isinstance(worker, Worker):
        raise ConfigurationError(f"{app!r} made {type(worker).__name__}, not a worker")
    return worker


def _spanned(key: str, value: Any) -> Any:
    is_seconds = key in _DURATIONS and isinstance(value, int | float)
    return timedelta(seconds=value) if is_seconds else value


if __name__ == "__main__":
    sys.exit(main())
