"""The end of a worker's process: threads that handlers left behind do not keep it alive.

Python waits at its end for every thread that is no daemon, however long that takes: the thread of a
handler's own ThreadPoolExecutor, or a plain `threading.Thread`. Their jobs were settled or released
before, so nothing is lost by not waiting; a service manager that waits for the process is.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

_log = logging.getLogger("taskharbor.worker")

PATIENCE_SECONDS = 2.0  # for threads that only need a moment, such as those of an idle pool


def exit_within(code: int, seconds: float = PATIENCE_SECONDS) -> None:
    """See to it that this process, which is about to end with this code, does so soon.

    Only where the process is the worker's own: the command line, and the children of a supervisor.
    """
    threading.Thread(target=_watch, args=(code, seconds), name="taskharbor-leaving", daemon=True).start()


def _watch(code: int, seconds: float) -> None:
    threading.Event().wait(seconds)
    left = left_behind()
    if not left:
        return  # what takes so long belongs to the program's own end, such as the last traces of an exporter
    _log.warning("not waiting for %d threads that handlers left behind: %s", len(left), ", ".join(left))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def left_behind() -> list[str]:
    """The names of the threads that Python would wait for."""
    main = threading.main_thread()
    return [thread.name for thread in threading.enumerate() if thread is not main and not thread.daemon]
