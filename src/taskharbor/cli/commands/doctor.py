"""taskharbor doctor: what is wrong, and what to do about it."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from statistics import median
from typing import Any

from taskharbor import __version__
from taskharbor.cli.columns import counted
from taskharbor.cli.exit_codes import DONE, ERROR, code_of
from taskharbor.cli.output import Output
from taskharbor.cli.session import AppFlag, Session, UrlFlag, chosen_store, refuse_missing, with_output
from taskharbor.cli.tables import Column
from taskharbor.drivers import Driver, connect
from taskharbor.drivers.messages import Query, QueueInfo
from taskharbor.drivers.unclaimed import Want, unclaimed
from taskharbor.errors import TaskHarborError
from taskharbor.model.clock import SystemClock
from taskharbor.model.presence import WorkerInfo, lanes_of, serves
from taskharbor.model.queue import EVERY_QUEUE
from taskharbor.model.schedule import StoredSchedule, is_undeclared
from taskharbor.model.state import JobState

_ROUND_TRIPS = 5
_SKEW_SECONDS = 1.0
_SLOW_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: ok, warn or fail, what was found, and how to fix it."""

    level: str
    check: str
    text: str
    fix: str | None = None

    def view(self) -> dict[str, Any]:
        return {"level": self.level, "check": self.check, "text": self.text, "fix": self.fix}


@with_output
def command(out: Output, url: UrlFlag = None, app: AppFlag = None) -> int:
    """Check the store, clock, queues, workers and schedules. Exit code 1 if something is broken."""
    address, harbor = chosen_store(out, url, app)
    refuse_missing(address, harbor)
    make = partial(connect, address) if harbor is None else harbor.driver.another
    findings = asyncio.run(examine(make, out))
    out.items([finding.view() for finding in findings], _COLUMNS)
    return ERROR if any(finding.level == "fail" for finding in findings) else DONE


async def examine(make: Callable[[], Driver], out: Output) -> list[Finding]:
    """All findings, including a store that cannot be opened."""
    findings = [Finding("ok", "version", f"taskharbor {__version__}, Python {platform.python_version()}")]
    try:
        async with await make().open_to_look() as driver:
            session = Session(driver=driver, out=out, clock=SystemClock())
            for check in _CHECKS:
                findings += await check(session)
    except TaskHarborError as error:
        fix = "check --url, and that the store is running" if code_of(error) == 6 else None
        findings.append(Finding("fail", "store", out.safe(str(error)), fix))
    return findings


async def _store(session: Session) -> list[Finding]:
    middle = median([await _round_trip(session) for _ in range(_ROUND_TRIPS)])
    info = await session.driver.info()
    facts = {"durability": info.durability, **info.details}
    details = ", ".join(f"{name} {value}" for name, value in facts.items() if value)
    text = f"{info.store} at {session.out.safe(info.location)}, {middle * 1000:.1f} ms, {details}"
    if middle > _SLOW_SECONDS:
        return [Finding("warn", "store", text, "every claim takes this long: run closer to the store")]
    if info.durability in ("D0", "D1"):
        return [Finding("warn", "store", text, _KEEP.get(info.driver, _KEEP["memory"]))]
    return [Finding("ok", "store", text)]


_KEEP = {
    "memory": "jobs are lost when the process ends: use sqlite:///jobs.db",
    "redis": "jobs can be lost when the server dies: set `appendonly yes` in its configuration",
}


async def _round_trip(session: Session) -> float:
    started = session.clock.monotonic()
    await session.driver.info()
    return session.clock.monotonic() - started


async def _schema(session: Session) -> list[Finding]:
    pending = await session.driver.pending_migrations()
    if pending:
        return [Finding("fail", "schema", f"pending: {', '.join(pending)}", "taskharbor migrate up")]
    return [Finding("ok", "schema", f"{(await session.driver.info()).schema}, as this version needs")]


async def _clock(session: Session) -> list[Finding]:
    before = session.now()
    at = (await session.driver.info()).at
    middle = before + (session.now() - before) / 2
    skew = abs((at - middle).total_seconds())
    text = f"{skew * 1000:.0f} ms between this machine and the store"
    if skew > _SKEW_SECONDS:
        return [
            Finding(
                "warn",
                "clock",
                text,
                "the store's clock is used for jobs; synchronise this one to get correct times in logs",
            )
        ]
    return [Finding("ok", "clock", text)]


async def _queues(session: Session) -> list[Finding]:
    infos = await session.driver.queues()
    workers = await session.driver.workers()
    findings = [finding for info in infos for finding in _of_queue(info, workers, session.now())]
    for info in infos:
        findings += await _unknown_tasks(session, info, workers)
    jobs = sum(info.counts.total for info in infos)
    names = [info.queue for info in infos if info.queue != EVERY_QUEUE]
    return findings or [
        Finding("ok", "queues", f"{counted(len(names), 'queue')}, {counted(jobs, 'job')}, none stuck")
    ]


def _of_queue(info: QueueInfo, workers: list[WorkerInfo], now: datetime) -> list[Finding]:
    name, counts = info.queue, info.counts
    found = []
    if info.rules.paused:
        waiting = f"{counted(counts.waiting, 'job')} {_wait(counts.waiting)}"
        what = "the harbor" if name == EVERY_QUEUE else f"queue {name}"
        fix = f"taskharbor queues resume {'--all' if name == EVERY_QUEUE else name}"
        found.append(Finding("warn", "queues", f"{what} is paused: {waiting}", fix))
    if info.rules.max_running == 0:
        found.append(
            Finding(
                "warn",
                "queues",
                f"queue {name} may run 0 jobs",
                f"taskharbor queues set {name} --max-running none",
            )
        )
    if counts.ready and not any(name in worker.report.queues for worker in workers):
        fix = f"taskharbor worker APP -q {name}"
        ready = f"{counted(counts.ready, 'job')} in queue {name} {_wait(counts.ready)}"
        found.append(Finding("warn", "workers", f"{ready}, but no live worker serves it", fix))
    if counts.failed:
        fix = f"taskharbor dlq list --queue {name}"
        found.append(Finding("warn", "dlq", f"{counted(counts.failed, 'dead letter')} in queue {name}", fix))
    return found


def _wait(count: int) -> str:
    return "waits" if count == 1 else "wait"


async def _unknown_tasks(session: Session, info: QueueInfo, workers: list[WorkerInfo]) -> list[Finding]:
    """Jobs that no worker of their queue can run: none has the task, or the lane."""
    name = info.queue
    if not info.counts.ready or not any(name in worker.report.queues for worker in workers):
        return []
    at = (await session.driver.info()).at
    wants = await unclaimed(session.driver, name, workers, before=at)
    return [_of_want(want, job_id, workers) for want, job_id in wants.items()]


def _of_want(want: Want, job_id: str, workers: list[WorkerInfo]) -> Finding:
    queue, lane, task = want
    serving = [worker.report for worker in workers if queue in worker.report.queues]
    if not any(not report.types or task in report.types for report in serving):
        text = f"jobs of {task} wait in {queue}, but no live worker there has that task (e.g. job {job_id})"
        return Finding("warn", "tasks", text, "taskharbor worker APP --include MODULE")
    if not any(lane in lanes_of(report) for report in serving):
        text = (
            f"jobs of {task} in {queue} need {lane}, but no live worker there offers it (e.g. job {job_id})"
        )
        return Finding("warn", "tasks", text, f"taskharbor worker APP -q {queue} --kind {lane}")
    text = f"jobs of {task} wait in {queue}, but every worker that could run them has stopped claiming"
    return Finding("warn", "tasks", text, f"taskharbor worker APP -q {queue}")


async def _workers(session: Session) -> list[Finding]:
    workers = await session.driver.workers()
    slots = sum(worker.report.concurrency for worker in workers)
    return [Finding("ok", "workers", f"{len(workers)} alive with {counted(slots, 'slot')}")]


async def _schedules(session: Session) -> list[Finding]:
    """Schedules whose code is gone, and those whose jobs no live worker can run."""
    entries = await session.driver.schedules()
    workers = await session.driver.workers()
    now = (await session.driver.info()).at
    findings = [finding for entry in entries for finding in _of_schedule(entry, workers, now)]
    return findings or [Finding("ok", "schedules", f"{counted(len(entries), 'schedule')}, none orphaned")]


def _of_schedule(entry: StoredSchedule, workers: list[WorkerInfo], now: datetime) -> list[Finding]:
    name, template = entry.schedule.name, entry.schedule.template
    fix = f"taskharbor schedules delete {name}"
    if is_undeclared(entry, now):
        text = f"schedule {name} no longer makes jobs: no program has declared it since {entry.declared_at}"
        return [Finding("warn", "schedules", text, fix)]
    wanted = {"queue": template.queue, "lane": template.requires, "type_name": template.type}
    if entry.paused or not workers or any(serves(worker.report, **wanted) for worker in workers):
        return []
    text = f"schedule {name} makes jobs of {template.type} in {template.queue}, which no live worker can run"
    return [Finding("warn", "schedules", text, f"taskharbor worker APP --include MODULE, or {fix}")]


async def _leases(session: Session) -> list[Finding]:
    """Leases that expired a while ago: no worker or scheduler is recovering jobs."""
    page = await session.driver.find(Query(states=(JobState.RUNNING,), limit=1000, payloads=False))
    now = (await session.driver.info()).at
    over = [job for job in page.jobs if job.lease_expires_at is not None and job.lease_expires_at <= now]
    if not over:
        return [Finding("ok", "leases", f"{len(page.jobs)} running, none expired")]
    fix = "start a worker on the queue or a scheduler: it recovers them"
    return [Finding("warn", "leases", f"{counted(len(over), 'running job')} lost the worker", fix)]


_CHECKS: tuple[Callable[[Session], Awaitable[list[Finding]]], ...] = (
    _store,
    _schema,
    _clock,
    _queues,
    _workers,
    _schedules,
    _leases,
)
_COLUMNS = (
    Column("LEVEL", lambda finding: finding["level"]),
    Column("CHECK", lambda finding: finding["check"]),
    Column("FOUND", lambda finding: finding["text"]),
    Column("FIX", lambda finding: finding["fix"], is_below=True),
)
