"""Reports about the worker go out beside the heartbeat: a slow one neither delays it nor makes it spin."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from taskharbor.drivers.memory import MemoryDriver
from taskharbor.model.clock import pause
from taskharbor.model.entropy import Entropy
from taskharbor.worker.heartbeat_loop import HeartbeatLoop
from taskharbor.worker.timing import Timing


class Beats:
    def __init__(self) -> None:
        self.looks = 0

    def wanted(self) -> list[Any]:
        self.looks += 1
        return []

    def drop_overdue(self) -> None: ...

    def wait_seconds(self) -> float:
        return 0.05


class SlowReports:
    """Due all the time, and never answered."""

    def __init__(self) -> None:
        self.begun = 0

    def is_due(self) -> bool:
        return True

    def next_due(self) -> float:
        return 0.0

    async def report(self) -> None:
        self.begun += 1
        await asyncio.Event().wait()

    async def leave(self) -> None: ...


async def test_a_report_that_hangs_is_one_report_and_the_heartbeat_keeps_its_own_pace() -> None:
    beats: Any = Beats()
    reports: Any = SlowReports()
    run: Any = SimpleNamespace(timing=Timing(), entropy=Entropy())
    loop = HeartbeatLoop(run, MemoryDriver(), beats, reports)

    for _ in range(3):
        await loop.tick()
        await pause()
        assert loop._wait_seconds(is_busy=True) == 0.05

    assert (beats.looks, reports.begun) == (3, 1)
    assert loop._reporting is not None
    loop._reporting.cancel()
