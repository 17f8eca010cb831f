"""How much memory this process uses."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_memory() -> int:
    """Bytes in real memory now; without /proc, the peak so far."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
