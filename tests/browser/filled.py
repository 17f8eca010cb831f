"""A store with a job in every state, made by the verbs of a driver at instants of the last minutes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim
from taskharbor.harbor import Harbor
from taskharbor.model.clock import Clock, SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, NewJob, Progress
from taskharbor.model.limits import RateLimit
from taskharbor.model.presence import WorkerReport
from taskharbor.model.queue import QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Ack, Fail, Retry, Stalled

TRACE = """Traceback (most recent call last):
  File "app/tasks/mail.py", line 31, in send_welcome
    server = connect(settings.SMTP_HOST)
  File "app/mail/smtp.py", line 88, in connect
    return smtplib.SMTP(host, 25, timeout=30)
  File "/usr/lib/python3.11/smtplib.py", line 255, in __init__
    (code, msg) = self.connect(host, port)
TimeoutError: timed out connecting to smtp-2.internal:25
"""
ERROR = "TimeoutError: timed out connecting to smtp-2.internal:25"
DEAD = 12
"""Dead letters of one cause."""

_S = timedelta(seconds=1)


class Filler:
    """Puts jobs in and ends them, each at the instant that is given."""

    def __init__(self, driver: Driver, now: datetime) -> None:
        self.driver, self.now, self.ids = driver, now, dict[str, str]()
        self._entropy = Entropy(7)

    async def put(self, name: str, type: str, queue: str, payload: Any = None, **options: Any) -> str:
        job_id = self._entropy.job_id(self.now)
        job = NewJob(id=job_id, type=type, queue=queue, payload=msgspec.json.encode(payload or {}), **options)
        await self.driver.enqueue([job], now=self.now)
        self.ids[name] = job_id
        return job_id

    async def claim(self, queue: str, worker: str, lease_for: timedelta = 60 * _S) -> JobRecord:
        claim = Claim(queues=(queue,), worker_id=worker, lease_for=lease_for, lanes=("any", "gpu"))
        [job] = (await self.driver.reserve(claim, now=self.now)).jobs
        return job

    async def settle(self, settlement: Any) -> None:
        await self.driver.settle([settlement], now=self.now)

    def later(self, seconds: float) -> None:
        self.now += seconds * _S


async def fill(url: str, clock: Clock | None = None) -> dict[str, str]:
    """Fill the store; the ids of its jobs by name."""
    clock = clock or SystemClock()
    harbor = Harbor(url, clock=clock)
    try:
        driver = await harbor.client.adriver()
        filler = Filler(driver, clock.now() - timedelta(minutes=5))
        await _failures(filler)
        await _the_rest(filler)
        await _workers_and_schedules(filler)
        return filler.ids
    finally:
        await harbor.aclose()


async def _failures(filler: Filler) -> None:
    """One job that timed out, stalled and timed out again, and eleven of the same cause."""
    payload = {"user_id": 48213, "template": "welcome", "smtp_token": "secret-value"}
    await filler.put(
        "failed", "send_welcome", "mail", payload, headers={"tags": "vip"}, max_attempts=3, timeout=30 * _S
    )
    filler.later(0.2)
    job = await filler.claim("mail", "web-1")
    filler.later(30)
    await filler.settle(Retry(job.lease, 2 * _S, ERROR, "timeout", trace=TRACE))
    filler.later(3)
    job = await filler.claim("mail", "web-2")
    filler.later(20)
    await filler.settle(Stalled(job.lease, "its process died"))
    filler.later(3)
    job = await filler.claim("mail", "web-1")
    filler.later(30)
    await filler.settle(Fail(job.lease, ERROR, "error", trace=TRACE))
    for number in range(1, DEAD):
        await filler.put(
            f"failed-{number}", "send_welcome", "mail", {"user_id": number, "template": "welcome"}
        )
        job = await filler.claim("mail", "web-3")
        filler.later(1)
        await filler.settle(Fail(job.lease, ERROR, "error", trace=TRACE))


async def _the_rest(filler: Filler) -> None:
    driver = filler.driver
    for number in range(6):
        await filler.put(f"completed-{number}", "resize_image", "images", {"number": number})
        job = await filler.claim("images", "web-2")
        filler.later(0.1)
        await filler.settle(Ack(job.lease, b'"640 px"'))
    await filler.put("retrying", "call_webhook", "webhooks", {"endpoint": 311}, max_attempts=12)
    job = await filler.claim("webhooks", "web-2")
    filler.later(1)
    await filler.settle(Retry(job.lease, 3600 * _S, "ReadTimeout: no answer within 10 s", "error"))
    await filler.put("scheduled", "export_csv", "exports", {"report": 5121}, delay=7200 * _S)
    await filler.put("cancelled", "build_report", "exports", {"tenant": "acme"})
    await driver.cancel([filler.ids["cancelled"]], now=filler.now)
    await filler.put("running", "embed_text", "search", {"doc": 90214}, key=b"doc-90214")
    job = await filler.claim("search", "gpu-a", 3600 * _S)
    progress = {filler.ids["running"]: Progress(0.62, "embedding")}
    await driver.extend_leases([job.lease], 3600 * _S, progress=progress, now=filler.now)
    await filler.put("blocked", "embed_text", "search", {"doc": 90214}, key=b"doc-90214")
    await filler.put("ready", "render_video", "media", {"clip": "intro-4k"}, requires="gpu")
    for number in range(3):
        await filler.put(f"waiting-{number}", "build_report", "reports", {"tenant": f"tenant {number}"})
    await driver.configure_queue(QueueSettings(queue="reports", paused=True))
    rate = RateLimit(count=100, per=60 * _S)
    await driver.configure_queue(QueueSettings(queue="mail", max_running=20, execute_rate=rate))


async def _workers_and_schedules(filler: Filler) -> None:
    running = (filler.ids["running"],)
    hour = 3600 * _S
    for report in (
        WorkerReport(
            worker_id="gpu-a", name="gpu-a", kind="gpu", concurrency=2, host="node-7", pid=71, running=running
        ),
        WorkerReport(worker_id="web-1", name="web-1", concurrency=10, host="node-1", pid=11),
        WorkerReport(worker_id="web-2", name="web-2", concurrency=10, host="node-1", pid=12),
    ):
        await filler.driver.report_worker(report, ttl=hour)
    template = NewJob(id="019e0000-0000-7000-8000-000000000000", type="poll_feeds", queue="default")
    await filler.driver.put_schedule(Schedule(name="poll_feeds", template=template, cron="*/5 * * * *"))
    await filler.driver.put_schedule(
        Schedule(name="nightly", template=template, cron="0 3 * * *", timezone="Europe/Berlin")
    )
