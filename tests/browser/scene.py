"""An hour of the demo's own jobs in simulated time: the same store, and so the same pages, in every run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from unittest.mock import patch

from taskharbor.cli import demo_app as app
from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim
from taskharbor.harbor import Harbor
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob, Progress
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.model.schedule import Schedule
from taskharbor.scheduler.duty import Now
from taskharbor.scheduler.logbook import MergeLog, NoteLevels
from taskharbor.testing import SimulatedClock
from taskharbor.testing.running import run_due
from taskharbor.worker import outcomes
from taskharbor.worker.worker import Worker

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
MINUTES = 60
_TROUBLE_AT = 44
"""From this minute on a service is down."""
_SECOND = timedelta(seconds=1)


async def build(url: str) -> SimulatedClock:
    """Run the demo's jobs for an hour; the clock, which shows the end of that hour."""
    with _nothing_of_this_machine():
        return await _run_an_hour(url)


@contextmanager
def _nothing_of_this_machine() -> Iterator[None]:
    """Workers with the same ids in every run, and tracebacks without the folders of this checkout."""
    trace_of, numbers = outcomes.trace_of, count(1)

    def named(**options: Any) -> Worker:
        number = next(numbers)
        return Harbor.worker(app.harbor, **{**options, "name": "web-1", "entropy": Entropy(number)})

    def traced(error: BaseException) -> str | None:
        return _neutral(trace_of(error))

    with patch.object(outcomes, "trace_of", traced), patch.object(app.harbor, "worker", named):
        yield


def _neutral(trace: str | None) -> str | None:
    """As on a server: the file below its package, and without the frame of the test's own worker."""
    kept, is_ours = [], False
    for line in (trace or "").splitlines(keepends=True):
        if line.startswith("  File "):
            is_ours = "taskharbor/testing/" in line
        elif not line.startswith("    "):
            is_ours = False
        if not is_ours:
            kept.append(re.sub(r'File ".*/src/taskharbor/cli/', 'File "app/', line))
    return "".join(kept) or None


async def _run_an_hour(url: str) -> SimulatedClock:
    clock = SimulatedClock(START)
    app.harbor.attach(connect(url, clock=clock, entropy=Entropy(11)), clock=clock)
    try:
        driver = await app.harbor.client.adriver()
        now = Now(driver, clock)
        levels, merge = NoteLevels(driver, now), MergeLog(driver, now)
        for minute in range(MINUTES):
            await _enqueue(minute)
            await run_due(app.harbor, concurrency=8)
            await levels.run_once()
            await merge.run_once()
            clock.advance_to(START + timedelta(minutes=minute + 1))
        await levels.run_once()
        await _leave_work(driver, clock)
    finally:
        await app.harbor.aclose()
    return clock


async def _enqueue(minute: int) -> None:
    for number in range(8 + round(4 * math.sin(minute / 7))):
        await app.resize_image.aenqueue(minute * 100 + number)
    await app.call_flaky_service.aenqueue(1 + minute % 2)
    await app.sync_account.using(key=f"account-{minute % 5}").aenqueue(minute % 5, minute)
    if minute % 9 == 4:
        await app.charge_unknown_card.aenqueue("4111")
    if minute >= _TROUBLE_AT:
        for _ in range(1 + minute % 3):
            await app.call_dead_service.aenqueue()


async def _leave_work(driver: Driver, clock: SimulatedClock) -> None:
    """What an observer sees at the end: jobs that wait, one that runs, workers and a schedule."""
    for number in range(37):
        await app.resize_image.aenqueue(number)
    for number in range(4):
        await app.send_reminder.using(delay=timedelta(minutes=10 * (number + 1))).aenqueue(number)
    await app.write_long_report.aenqueue()
    claim = Claim(queues=(app.REPORTS,), worker_id="web-1", lease_for=30 * _SECOND)
    [job] = (await driver.reserve(claim, now=clock.now())).jobs
    clock.advance(12.2)
    await driver.extend_leases(
        [job.lease], 30 * _SECOND, progress={job.id: Progress(0.62, "writing")}, now=clock.now()
    )
    for name, slots, host, running in (
        ("web-1", 8, "node-1", (job.id,)),
        ("web-2", 8, "node-1", ()),
        ("web-3", 8, "node-2", ()),
    ):
        report = WorkerReport(
            worker_id=name, name=name, concurrency=slots, host=host, pid=7, running=running, started_at=START
        )
        slow = [Sample(job.type, (4 if name == "web-3" else 1) * _SECOND)] * 20
        await driver.report_worker(report, slow, ttl=300 * _SECOND, now=clock.now())
    template = NewJob(id="019e0000-0000-7000-8000-000000000000", type="send_reminder", queue=app.REPORTS)
    for name, cron in (("hourly_rollup", "0 * * * *"), ("nightly_export", "0 3 * * *")):
        await driver.put_schedule(Schedule(name=name, template=template, cron=cron), now=clock.now())


def served_harbor(url: str, clock: SimulatedClock) -> Harbor:
    return Harbor(url, clock=clock)
