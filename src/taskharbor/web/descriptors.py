"""File descriptors: room for the connections that a server may hold, or a clear word that there is none."""

from __future__ import annotations

import logging

_log = logging.getLogger("taskharbor.server")

BESIDES = 128
"""What a server needs besides its callers': the store, logs, the scheduler beside it."""


def room_for(connections: int) -> int:
    """Raise this process's limit so that so many fit beside the rest; answers how many do."""
    try:
        import resource
    except ModuleNotFoundError:  # pragma: no cover - not a Unix
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + BESIDES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):
        raised = soft
    if raised >= wanted:
        return connections
    fits = max(raised - BESIDES, raised // 2, 1)
    _log.warning(
        "this process may open %d files, too few for %d connections: it takes %d. Raise the limit with "
        "`ulimit -n %d` or LimitNOFILE=%d, or ask for fewer with --max-connections",
        raised, connections, fits, wanted, wanted,
    )  # fmt: skip
    return fits
