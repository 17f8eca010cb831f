"""Ends a worker's process even if handlers left threads running.

At exit Python waits for every thread that is no daemon, however long that takes: the thread of a handler's
own ThreadPoolExecutor, or a plain `threading.Thread`. Their jobs were settled or released before, so nothing
is lost by not waiting; and a service manager waits for the process.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

_log = logging.getLogger("taskharbor.worker")

PATIENCE_SECONDS = 2.0  # for threads that only need a moment, such as those of an idle pool


def exit_within(code: int, seconds: float = PATIENCE_SECONDS) -> None:
    """Make this process, which is about to end with this code, end within so many seconds.

    Only where the process is the worker's own: the command line, and the children of a supervisor.
    """
    threading.Thread(
        target=_exit_after, args=(code, seconds), name="taskharbor-forced-exit", daemon=True
    ).start()


def _exit_after(code: int, seconds: float) -> None:
    threading.Event().wait(seconds)
    left = left_behind()
    if not left:
        return  # the program's own exit is slow, such as the last traces of an exporter
    _log.warning("not waiting for %d threads that handlers left behind: %s", len(left), ", ".join(left))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def left_behind() -> list[str]:
    """The names of the threads that Python would wait for."""
    main = threading.main_thread()
    return [thread.name for thread in threading.enumerate() if thread is not main and not thread.daemon]
