"""From the flags of `taskharbor worker` to a running worker, or several processes of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from taskharbor.cli.exits import DONE
from taskharbor.cli.handlers import builtin_of
from taskharbor.cli.logs import LogFormat, LogLevel, log_to_stderr, tell_attempts
from taskharbor.cli.output import Output
from taskharbor.drivers import connect
from taskharbor.model.job import DEFAULT_QUEUE
from taskharbor.settings.store import store_url
from taskharbor.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one worker process needs to know; plain enough to travel to another process."""

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
    scheduler: bool
    log_format: LogFormat
    log_level: LogLevel


def work_here(plan: Plan, *, burst: bool, health: tuple[str, int | None], out: Output) -> int:
    """Run one worker in this process until it ends; answers the exit code."""
    from taskharbor.cli.health import serve_health

    log_to_stderr(plan.log_format, plan.log_level)
    worker = build(plan, out)
    with serve_health(*health, lambda: worker.is_running):
        why = worker.run(until_idle=burst)
    out.detail(f"the worker has ended: {why}")
    return DONE


def work_in_processes(
    plan: Plan, processes: int, *, burst: bool, health: tuple[str, int | None], out: Output
) -> int:
    """Keep so many worker processes alive until told to stop; answers the exit code."""
    from taskharbor.worker.supervisor import SupervisorConfig, run_supervisor

    log_to_stderr(plan.log_format, plan.log_level)
    build(plan, out)  # a broken app is told here, once, and not by every process
    host, port = health
    return run_supervisor(
        SupervisorConfig(
            app=f"{__name__}:child_worker",
            processes=processes,
            options={"plan": msgspec.to_builtins(plan)},
            path=(os.getcwd(),),
            until_idle=burst,
            grace_seconds=plan.grace.total_seconds(),
            health_port=port,
            health_host=host,
            log_level=plan.log_level.upper(),
        )
    )


def child_worker(plan: dict[str, Any]) -> Worker:
    """The worker of one of those processes; what the supervisor's child calls."""
    told = msgspec.convert(plan, Plan)
    log_to_stderr(told.log_format, told.log_level, alone=True)
    return build(told)


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

    return load_app(plan.app or "", plan.url).worker(plan.queues, scheduler=plan.scheduler, **options)


def _of_store(plan: Plan, options: dict[str, Any], out: Output | None) -> Worker:
    address = store_url(plan.url)
    if out is not None:
        out.secrets.append(address)
    return Worker(connect(address), plan.queues or (DEFAULT_QUEUE,), **options)
