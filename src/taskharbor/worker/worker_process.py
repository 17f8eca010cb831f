"""One worker process of a supervisor: `python -m taskharbor.worker.worker_process PARENT_PID`.

Its settings come on stdin.
"""

from __future__ import annotations

import logging
import sys

import msgspec

from taskharbor.errors import ConfigurationError
from taskharbor.worker.executors.process_tree import die_with_parent
from taskharbor.worker.forced_exit import exit_within
from taskharbor.worker.supervisor import MISCONFIGURED, RECYCLED, SupervisorConfig
from taskharbor.worker.worker_loading import load_worker

_log = logging.getLogger("taskharbor.worker")


def main() -> int:
    die_with_parent(int(sys.argv[1]))
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=SupervisorConfig)
    logging.basicConfig(level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.path[:0] = [folder for folder in config.path if folder not in sys.path]
    try:
        worker = load_worker(config.app, config.options)
    except Exception:  # noqa: BLE001 - an app may raise anything while it is imported
        _log.exception("cannot start %s", config.app)
        return MISCONFIGURED
    worker.is_supervised = True
    try:
        why = worker.run(until_idle=config.until_idle)
    except ConfigurationError as error:
        _log.error("cannot start %s: %s", config.app, error)
        return MISCONFIGURED
    return RECYCLED if why == "recycle" else 0


if __name__ == "__main__":
    code = main()
    exit_within(code)
    sys.exit(code)
