"""CPU time of this process and of servers: on a busy machine it says more than the clock."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Spent:
    """What something took: seconds by the clock, and of CPU in this process and in the servers."""

    seconds: float
    own: float
    servers: float

    @property
    def cpu(self) -> float:
        return self.own + self.servers

    def micros(self, jobs: int) -> tuple[float, float]:
        """µs of CPU per job, in this process and in the servers."""
        return self.own / jobs * 1e6, self.servers / jobs * 1e6


class Stopwatch:
    """Counts from its making on. Processes that this one has waited for count as its own."""

    def __init__(self, servers: Iterable[int] = ()) -> None:
        self._servers = tuple(servers)
        self._before = self._now()

    def spent(self) -> Spent:
        return Spent(*(now - before for now, before in zip(self._now(), self._before, strict=True)))

    def _now(self) -> tuple[float, float, float]:
        times = os.times()
        own = time.process_time() + times.children_user + times.children_system
        return time.perf_counter(), own, sum(cpu_seconds(pid) for pid in self._servers)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and its children: to the nanosecond while they live, in ticks afterwards."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        folder = Path(f"/proc/{pid}")
        ran = sum(
            int((thread / "schedstat").read_text().split()[0]) for thread in (folder / "task").iterdir()
        )
        ended = (folder / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[13:15]
        children = (folder / "task" / str(pid) / "children").read_text(encoding="ascii").split()
        ticks = sum(int(field) for field in ended) / os.sysconf("SC_CLK_TCK")
        return ran / 1e9 + ticks + sum(cpu_seconds(int(child)) for child in children)
    return 0.0  # it ended while we looked
