"""What metrics cost a job, counted instead of timed: calls and lines are the same on every machine.

A drain of no-op jobs takes some sixty Python calls a job. The bounds are what was found when this was
written, and a little more: a change that passes them adds work to every job of everybody with metrics.
"""

from __future__ import annotations

import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from taskharbor.events import EventBus
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.log_cells import Numbers, sum_of_numbers, unpacked
from taskharbor.model.logbook import NUMBERS
from taskharbor.observe import metric_names
from taskharbor.observe.meter import Meter
from taskharbor.observe.store_times import OPS, time_store
from taskharbor.testing.clock import SimulatedClock
from tests.unit.worker.worker_fixture import FaultyDriver, WorkerHarness

JOBS = 1000
OBSERVE = str(Path(metric_names.__file__).parent)


class Watcher:
    """Counts what this thread does: calls of Python and of C functions, and lines run in observe/."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Watcher:
        self._before = sys.getprofile(), sys.gettrace()
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        profile, trace = self._before
        sys.setprofile(profile)
        sys.settrace(trace)

    def per_job(self, what: str) -> float:
        return self.counts[what] / JOBS

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event in ("call", "c_call"):
            self.counts[event] += 1

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._lines if frame.f_code.co_filename.startswith(OBSERVE) else None

    def _lines(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.counts["line"] += 1
        return self._lines


async def nothing(ctx: object, job: object) -> None:
    return None


async def drained(meter: Meter | None, *, logbook: bool = False) -> tuple[Watcher, FaultyDriver]:
    """In virtual time, in which nothing depends on how fast the machine is."""
    clock, entropy, events = SimulatedClock(), Entropy(1), EventBus()
    async with FaultyDriver(clock=clock, entropy=entropy) as driver:
        harness = WorkerHarness(driver, clock)
        worker = harness.worker({"work": nothing}, concurrency=100, events=events, logbook=logbook)
        jobs = [NewJob(id=entropy.job_id(clock.now()), type="work") for _ in range(JOBS)]
        await driver.enqueue(jobs, now=clock.now())
        if meter is not None:
            time_store(driver, meter)
            meter.listen(events)
        with Watcher() as watcher:
            await harness.run_until_idle(worker)
    assert worker.counts["finished"] == JOBS
    return watcher, driver


async def test_a_job_costs_the_meter_next_to_nothing() -> None:
    meter = Meter()
    off, _ = await drained(None)
    on, _ = await drained(meter)

    [ended] = [value for value in meter.sample().counters[metric_names.JOBS_FINISHED.name].values() if value]
    assert ended == JOBS, "everything was counted"
    assert 0 < on.per_job("line") < 16
    assert on.per_job("call") - off.per_job("call") < 0.25
    assert on.per_job("c_call") - off.per_job("c_call") < 0.5


async def test_a_job_costs_the_logbook_next_to_nothing() -> None:
    off, _ = await drained(None)
    on, driver = await drained(None, logbook=True)

    now = driver.clock.now()
    cells = await driver.another().open()
    entries = await cells.read_log(NUMBERS, now - timedelta(hours=1), now + timedelta(hours=1))
    rows = sum_of_numbers(unpacked(entry.data, Numbers) for entry in entries)
    assert sum(row.completed for row in rows) == JOBS, "everything was counted"
    assert on.per_job("call") - off.per_job("call") < 0.8
    assert on.per_job("c_call") - off.per_job("c_call") < 0.8


async def test_without_metrics_not_a_line_of_them_runs() -> None:
    off, driver = await drained(None)

    assert off.counts["call"] > 0
    assert off.counts["line"] == 0
    assert not set(vars(driver)) & set(OPS), "no verb is timed"
