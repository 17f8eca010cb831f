"""From the flags of `taskharbor worker` to a running worker, or several processes of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from taskharbor.cli.handlers import builtin_of
from taskharbor.cli.health import serve_health
from taskharbor.cli.logs import LogFormat, LogLevel, log_to_stderr, tell_attempts
from taskharbor.cli.output import Output
from taskharbor.cli.session import store_url
from taskharbor.drivers import connect
from taskharbor.model.job import DEFAULT_QUEUE
from taskharbor.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a worker process needs to know; plain enough to travel to another process."""

    app: str | None
    handlers: tuple[str, ...]
    url: str | None
    queues: tuple[str, ...] | None
    concurrency: int
    kind: str
    lease: timedelta
    heartbeat: timedelta | None
    grace: timedelta
    name: str | None
    max_jobs: int
    max_memory: int
    burst: bool
    log_format: LogFormat
    log_level: LogLevel


def work(plan: Plan, *, processes: int, health: tuple[str, int | None], out: Output) -> str:
    """Run until the end; answers why it ended: stop, idle or recycle."""
    log_to_stderr(plan.log_format, plan.log_level)
    worker = build(plan, out)
    with serve_health(*health, lambda: worker.is_running):
        return worker.run(until_idle=plan.burst)


def build(plan: Plan, out: Output | None = None) -> Worker:
    """The worker of a plan, with the app's tasks and the built-in handlers."""
    options: dict[str, Any] = {
        "concurrency": plan.concurrency,
        "kind": plan.kind,
        "lease": plan.lease,
        "heartbeat": plan.heartbeat,
        "grace": plan.grace,
        "name": plan.name,
        "max_jobs": plan.max_jobs,
        "max_memory": plan.max_memory,
    }
    worker = _of_app(plan, options) if plan.app is not None else _of_store(plan, options, out)
    for pair in plan.handlers:
        worker.register(*builtin_of(pair))
    tell_attempts(worker.events)
    return worker


def _of_app(plan: Plan, options: dict[str, Any]) -> Worker:
    from taskharbor.cli.apps import load_app

    return load_app(plan.app or "", plan.url).worker(plan.queues, **options)


def _of_store(plan: Plan, options: dict[str, Any], out: Output | None) -> Worker:
    address = store_url(plan.url)
    if out is not None:
        out.secrets.append(address)
    return Worker(connect(address), plan.queues or (DEFAULT_QUEUE,), **options)
