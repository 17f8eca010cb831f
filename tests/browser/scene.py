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
from taskharbor.model.job import JobRecord, NewJob, Progress
from taskharbor.model.presence import GpuUse, Machine, Sample, WorkerReport
from taskharbor.model.settlement import Fail, Retry, Stalled
from taskharbor.scheduler.duty import Now
from taskharbor.scheduler.logbook import MergeLog, NoteLevels
from taskharbor.testing import SimulatedClock
from taskharbor.testing.running import run_due
from taskharbor.worker import outcomes
from taskharbor.worker.worker import Worker
from tests.browser import scene_log
from tests.browser.filled import Filler

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
MINUTES = 60
_TROUBLE_AT = 44
"""From this minute on a release is at work for which a service is down."""
_LIMITED_AT = 21
"""In this minute somebody limits a queue."""
_LOST_AT = 52
"""From this minute on nobody is left who takes images."""
TARGETS = {app.CALLS: timedelta(minutes=5)}
RELEASES = ("9be0d17", "4f2a9c1")
_SECOND = timedelta(seconds=1)
_LONG = 600 * _SECOND
_GIB = 1024**3
_ERROR = "ConnectionError: no answer from 10.0.7.2:8443"
_TRACE = f"""Traceback (most recent call last):
  File "app/demo_app.py", line 47, in call_dead_service
    return socket.create_connection(address, timeout=30)
  File "/usr/lib/python3.11/socket.py", line 851, in create_connection
    raise exceptions[0]
{_ERROR}
"""
_MACHINES = {
    "node-1": Machine(cores=16, load=11.2, memory=64 * _GIB, memory_used=41 * _GIB, store_s=0.0009),
    "node-2": Machine(cores=16, load=9.8, memory=64 * _GIB, memory_used=38 * _GIB, store_s=0.0011),
    "node-7": Machine(cores=32, load=6.1, memory=512 * _GIB, memory_used=180 * _GIB, store_s=0.0014),
}


async def build(url: str) -> SimulatedClock:
    """Run the demo's jobs for an hour; the clock, which shows the end of that hour."""
    with _nothing_of_this_machine():
        return await _run_an_hour(url)


@contextmanager
def _nothing_of_this_machine() -> Iterator[None]:
    """Workers with the same ids in every run, and tracebacks without the folders of this checkout."""
    trace_of, numbers = outcomes.trace_of, count(0)

    def named(**options: Any) -> Worker:
        number = next(numbers)
        place = number % 2
        mine = {
            "name": f"web-{place + 1}",
            "labels": {"release": _release_at(number)},
            "entropy": Entropy(place),
        }
        if number >= _LOST_AT:
            mine["queues"] = [queue for queue in options["queues"] if queue != app.IMAGES]
        return Harbor.worker(app.harbor, **{**options, **mine})

    def traced(error: BaseException) -> str | None:
        return _neutral(trace_of(error))

    with patch.object(outcomes, "trace_of", traced), patch.object(app.harbor, "worker", named):
        yield


def _release_at(minute: int) -> str:
    return RELEASES[minute >= _TROUBLE_AT]


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
            await levels.run_once()  # before what arrives: levels are those of the beginning of a minute
            await _enqueue(minute)
            await run_due(app.harbor, concurrency=8)
            await merge.run_once()
            clock.advance_to(START + timedelta(minutes=minute + 1))
        await levels.run_once()
        await _one_that_died(driver)
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
        for number in range(1 + minute % 3):
            await app.call_dead_service.aenqueue(
                4100 + minute * 3 + number, "team" if minute % 8 == 0 else "free"
            )


async def _one_that_died(driver: Driver) -> None:
    """The job that the pictures show: it timed out, its worker fell silent, and it failed."""
    filler, ids = Filler(driver, START + timedelta(minutes=57, seconds=12)), scene_log.ids()
    await filler.put(
        "dead", "call_dead_service", app.CALLS, {"order": 4275, "plan": "free"},
        priority=5, max_attempts=3, max_stalls=3,
        timeout=30 * _SECOND, headers={"tags": "vip"}, key=b"order-4275",
    )  # fmt: skip
    filler.later(0.2)
    job = await filler.claim(app.CALLS, ids["web-1"])
    filler.later(30)
    await filler.settle(Retry(job.lease, 2 * _SECOND, _ERROR, "timeout", trace=_TRACE))
    filler.later(3)
    job = await filler.claim(app.CALLS, ids["web-3"])
    filler.later(38)
    await filler.settle(Stalled(job.lease, "its worker fell silent"))
    filler.later(3)
    job = await filler.claim(app.CALLS, ids["web-2"])
    filler.later(24)
    await filler.settle(Retry(job.lease, 8 * _SECOND, _ERROR, "error", trace=_TRACE))
    filler.later(9)
    job = await filler.claim(app.CALLS, ids["web-1"])
    filler.later(30)
    await filler.settle(Fail(job.lease, _ERROR, "error", trace=_TRACE))


async def _leave_work(driver: Driver, clock: SimulatedClock) -> None:
    """What an observer sees at the end: jobs that wait and that run, workers, changes and schedules."""
    for number in range(4):
        await app.send_reminder.using(delay=timedelta(minutes=10 * (number + 1))).aenqueue(number)
    await app.write_long_report.aenqueue()
    report = await _running(driver, clock, "web-1", app.REPORTS)
    images = [await _running(driver, clock, "gpu-a", app.IMAGES) for _ in range(2)]
    clock.advance(12.2)
    for job, share, text in ((report, 0.62, "writing"), (images[0], 0.35, "resizing")):
        progress = {job.id: Progress(share, text)}
        await driver.extend_leases([job.lease], _LONG, progress=progress, now=clock.now())
    await scene_log.write(driver, clock.now())
    await _report(driver, clock, report, images)


async def _running(driver: Driver, clock: SimulatedClock, name: str, queue: str) -> JobRecord:
    claim = Claim(queues=(queue,), worker_id=scene_log.ids()[name], lease_for=_LONG)
    [job] = (await driver.reserve(claim, now=clock.now())).jobs
    return job


async def _report(driver: Driver, clock: SimulatedClock, report: JobRecord, images: list[JobRecord]) -> None:
    """Three workers for everything, one with GPUs, and one that fell silent before the end of the hour."""
    gpus = tuple(
        GpuUse(
            id=str(place),
            name="H100 80 GB",
            memory=80 * _GIB,
            memory_used=used * _GIB,
            use=use,
            celsius=celsius,
            job=job.id,
        )
        for place, (job, used, use, celsius) in enumerate(
            ((images[0], 71, 0.97, 68), (images[1], 20, 0.12, 44))
        )
    )
    old, new = RELEASES
    web: dict[str, Any] = {"kind": "cpu", "queues": (app.CALLS, app.REPORTS), "concurrency": 8}
    at_work = tuple(job.id for job in images)
    gpu: dict[str, Any] = {"kind": "gpu", "queues": (app.IMAGES,), "concurrency": 2}
    silent = clock.now() - 52 * _SECOND
    for name, seen_at, fields in (
        ("web-1", clock.now(), {**web, "host": "node-1", "release": new, "running": (report.id,)}),
        ("web-2", clock.now(), {**web, "host": "node-1", "release": new}),
        ("web-3", clock.now(), {**web, "host": "node-2", "release": old}),
        ("gpu-a", clock.now(), {**gpu, "host": "node-7", "release": new, "gpus": gpus, "running": at_work}),
        ("gpu-b", silent, {**gpu, "host": "node-8", "release": old, "running": (images[0].id,)}),
    ):  # fmt: skip
        since = START + timedelta(minutes=_TROUBLE_AT) if fields["release"] == new else START - 3600 * _SECOND
        machine = _MACHINES.get(fields["host"])
        worker = WorkerReport(
            worker_id=scene_log.ids()[name], name=name, pid=7, started_at=since, machine=machine, **fields
        )
        slow = [Sample(report.type, (4 if name == "web-3" else 1) * _SECOND)] * 20
        ttl = 60 * _SECOND if name == "gpu-b" else _LONG
        await driver.report_worker(worker, slow, ttl=ttl, now=seen_at)


async def go_on(url: str, clock: SimulatedClock) -> None:
    """The next seconds, for rates: more jobs arrive, and the report of one worker runs out."""
    driver = connect(url, clock=clock, entropy=Entropy(12))
    entropy = Entropy(13)
    await driver.open()
    clock.advance(8)
    jobs = [
        NewJob(id=entropy.job_id(clock.now()), type=kind, queue=queue, payload=payload)
        for kind, queue, payload in (
            ("resize_image", app.IMAGES, b'{"number": 900}'),
            ("sync_account", app.REPORTS, b'{"account": 1, "change": 60}'),
        )
    ]
    await driver.enqueue(jobs, now=clock.now())
    await driver.close()


def served_harbor(url: str, clock: SimulatedClock) -> Harbor:
    return Harbor(url, clock=clock)
