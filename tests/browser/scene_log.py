"""What the scene's logbook has besides its hour: a change, older failures, runs, a slow worker."""

from __future__ import annotations

import zlib
from datetime import datetime, timedelta
from typing import Any

import msgspec

from taskharbor.cli import demo_app as app
from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query
from taskharbor.model.clock import Clock, micros
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.log_cells import CauseNumbers, Fire, Level, Numbers, packed
from taskharbor.model.log_series import MINUTE, QUARTER, floor
from taskharbor.model.logbook import AUDIT, CAUSES_QUARTERS, FIRES, KEPT, LEVELS, NUMBERS, LogEntry
from taskharbor.model.queue import QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.model.state import JobState
from taskharbor.views import listed_job
from taskharbor.web.audit_book import AuditRecord

_LIMITED = timedelta(minutes=39)
"""So long before the end somebody limited a queue."""
_KNOWN_FOR = timedelta(days=3)
_NEW = "call_dead_service"
"""The task whose failures nobody has seen before this hour."""


def ids() -> dict[str, str]:
    """The id of each worker by name, as the workers of the hour made theirs."""
    names = ("web-1", "web-2", "web-3", "gpu-a", "gpu-b")
    return {name: f"{name}-{Entropy(place).bytes(4).hex()}" for place, name in enumerate(names)}


async def past(url: str, clock: Clock) -> None:
    """An hour of even numbers for a store that is settled at fixed instants."""
    driver, now = connect(url, clock=clock, entropy=Entropy(21)), clock.now()
    await driver.open()
    for minute in range(1, 60):
        at = floor(now, MINUTE) - minute * MINUTE
        done = Numbers(
            "mail", "send_welcome", completed=600 + minute % 5 * 20, failed=7 if minute < 12 else 0
        )
        full = Level(
            "mail", waiting=300 - 4 * minute, ready=300 - 4 * minute, running=4, failed=0, oldest=60 - minute
        )
        await _entry(driver, NUMBERS, at, "", packed([done]), now)
        await _entry(driver, LEVELS, at, "", packed([full]), now)
    await driver.close()


async def write(driver: Driver, now: datetime) -> None:
    await _limit(driver, now)
    await _older_failures(driver, now)
    await _slow_worker(driver, now)
    await _schedules(driver, now)


async def _entry(driver: Driver, book: str, at: datetime, by: str, data: bytes, now: datetime) -> None:
    await driver.write_log([LogEntry(book=book, at=at, by=by, data=data, until=at + KEPT[book])], now=now)


async def _limit(driver: Driver, now: datetime) -> None:
    await driver.configure_queue(QueueSettings(queue=app.IMAGES, max_running=2), now=now)
    record = AuditRecord(
        who="ana", name="47e7dbb6d72b", role="operator", client="10.0.0.7", did="configure_queue",
        what=app.IMAGES, status=200, request_id="r-limit", undo="open",
        before={"max_running": 4}, after={"max_running": 2},
    )  # fmt: skip
    data = zlib.compress(msgspec.msgpack.encode(record), 1)
    await _entry(driver, AUDIT, now - _LIMITED, record.request_id, data, now)


async def _older_failures(driver: Driver, now: datetime) -> None:
    """The other causes failed days ago, too."""
    query = Query(states=(JobState.FAILED, JobState.COMPLETED), limit=1000, newest_first=True)
    at, known = floor(now - _KNOWN_FOR, QUARTER), dict[str, Any]()
    for job in (await driver.find(query, now=now)).jobs:
        cause = listed_job(job).cause
        if cause is not None and job.type != _NEW:
            known.setdefault(cause, job)
    for cause, job in known.items():
        row = CauseNumbers(
            cause, job.queue, job.type, job.last_error or "", None, "error", 3, 0, micros(at), micros(at),
            job.id, "",
        )  # fmt: skip
        await _entry(driver, CAUSES_QUARTERS, at, f"web-1-{cause}", packed([row]), now)


async def _slow_worker(driver: Driver, now: datetime) -> None:
    """web-3 takes four times as long as the two that do the same."""
    for name, seconds in (("web-1", 0.02), ("web-2", 0.021), ("web-3", 0.083)):
        row = Numbers(app.CALLS, "call_flaky_service")
        row.ran([seconds] * 20)
        await _entry(driver, NUMBERS, floor(now, MINUTE), ids()[name], packed([row]), now)


async def _schedules(driver: Driver, now: datetime) -> None:
    template = NewJob(id="019e0000-0000-7000-8000-000000000000", type="send_reminder", queue=app.REPORTS)
    for name, cron in (
        ("sync_accounts", "*/15 * * * *"),
        ("hourly_rollup", "0 * * * *"),
        ("nightly_export", "0 3 * * *"),
    ):
        await driver.put_schedule(Schedule(name=name, template=template, cron=cron), now=now)
    query = Query(queue=app.REPORTS, states=(JobState.COMPLETED,), limit=3, newest_first=True)
    for place, job in enumerate((await driver.find(query, now=now)).jobs):
        tick = floor(now, MINUTE) - (place + 1) * timedelta(minutes=15)
        await _entry(driver, FIRES, tick, "sync_accounts", packed([Fire(job.id)]), now)
