"""A harbor with a past: causes of failures, workers of different speed, runs of a schedule."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from taskharbor.harbor import Harbor
from taskharbor.model.cause import cause_of
from taskharbor.model.clock import Clock, SystemClock
from taskharbor.model.job import NewJob
from taskharbor.model.log_cells import CauseNumbers, Fire, Numbers, packed
from taskharbor.model.logbook import CAUSES, FIRES, KEPT, NUMBERS, LogEntry
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Ack, Fail
from tests.browser.filled import ERROR, TRACE, Filler

DEAD = 12
"""Dead letters of the cause that is new."""
RELEASE = "4f2a9c1"
CAUSE = cause_of("send_welcome", ERROR, TRACE, "error")
_MINUTE = timedelta(minutes=1)
_HOUR = timedelta(hours=1)
_TEMPLATE = NewJob(id="019e0000-0000-7000-8000-000000000000", type="poll_feeds", queue="feeds")


class Writer(Filler):
    """Fills the logbook, too."""

    async def write(self, book: str, at: datetime, by: str, row: Any) -> None:
        at = at.replace(second=0, microsecond=0)
        cell = LogEntry(book=book, at=at, by=by, data=packed([row]), until=at + KEPT[book])
        await self.driver.write_log([cell])


async def fill(url: str, clock: Clock | None = None) -> dict[str, str]:
    """Fill the store; the ids of its jobs by name."""
    clock = clock or SystemClock()
    harbor = Harbor(url, clock=clock)
    try:
        filler = Writer(await harbor.client.adriver(), clock.now() - 5 * _MINUTE)
        await _dead_letters(filler)
        await _causes(filler)
        await _workers(filler, clock.now())
        await _schedules(filler)
        return filler.ids
    finally:
        await harbor.aclose()


async def _dead_letters(filler: Writer) -> None:
    for number in range(DEAD):
        payload = {"user_id": number, "template": "welcome"}
        await filler.put(f"failed-{number}", "send_welcome", "mail", payload)
        job = await filler.claim("mail", "web-3")
        filler.later(1)
        await filler.settle(Fail(job.lease, ERROR, "error", trace=TRACE))
    for number in range(4):
        await filler.put(f"waiting-{number}", "build_report", "reports", {"tenant": f"tenant {number}"})
    await filler.put("embedding", "embed_text", "search", {"doc": 90214})
    await filler.claim("search", "gpu-a", _HOUR)


async def _causes(filler: Writer) -> None:
    """One that began with a release, five minutes ago, and one that is known for two days."""
    earlier, webhook = filler.now - 30 * _MINUTE, cause_of("call_webhook", "ReadTimeout: no answer", None)
    began = _micros(filler.now)
    new = CauseNumbers(
        CAUSE.id, "mail", "send_welcome", CAUSE.title, CAUSE.frame, "error", 30, DEAD, began, began,
        filler.ids["failed-0"], RELEASE, RELEASE,
    )  # fmt: skip
    old = CauseNumbers(
        webhook.id, "webhooks", "call_webhook", webhook.title, None, "error", 7, 0,
        _micros(filler.now - 48 * _HOUR), _micros(earlier), filler.ids["failed-0"], "9be0d17", "9be0d17",
    )  # fmt: skip
    for at, row in ((filler.now, new), (earlier, old)):
        await filler.write(CAUSES, at, "web-3", row)


def _micros(instant: datetime) -> int:
    return int(instant.timestamp() * 1e6)


async def _workers(filler: Writer, now: datetime) -> None:
    """web-3 takes four times as long as the two that do the same."""
    for name, host, milliseconds in (
        ("web-1", "node-1", 40),
        ("web-2", "node-1", 42),
        ("web-3", "node-2", 165),
    ):
        report = WorkerReport(worker_id=name, name=name, queues=("mail",), concurrency=8, host=host, pid=11)
        seconds = milliseconds / 1000
        await filler.driver.report_worker(
            report, [Sample("send_welcome", timedelta(seconds=seconds))], ttl=_HOUR
        )
        row = Numbers("mail", "send_welcome")
        row.ran([seconds] * 20)
        await filler.write(NUMBERS, now, name, row)
    gpu = WorkerReport(
        worker_id="gpu-a",
        name="gpu-a",
        kind="gpu",
        queues=("search",),
        concurrency=2,
        host="node-7",
        running=(filler.ids["embedding"],),
    )
    await filler.driver.report_worker(gpu, ttl=_HOUR)


async def _schedules(filler: Writer) -> None:
    await filler.driver.put_schedule(Schedule(name="poll_feeds", template=_TEMPLATE, cron="*/5 * * * *"))
    await filler.driver.put_schedule(
        Schedule(name="nightly", template=_TEMPLATE, cron="30 2 * * *", timezone="Europe/Berlin")
    )
    await filler.put("polled", "poll_feeds", "feeds")
    job = await filler.claim("feeds", "web-1")
    await filler.settle(Ack(job.lease, b"3"))
    await filler.write(FIRES, filler.now, "poll_feeds", Fire(filler.ids["polled"]))
