"""From the flags of `taskharbor worker` to a running worker, or several processes of them."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from taskharbor.cli.exits import DONE
from taskharbor.cli.handlers import builtin_of
from taskharbor.cli.logs import LogFormat, LogLevel, log_to_stderr, tell_attempts
from taskharbor.cli.output import Output
from taskharbor.drivers import Driver, connect
from taskharbor.harbor import Harbor
from taskharbor.model.job import DEFAULT_QUEUE
from taskharbor.model.limits import RateLimit
from taskharbor.settings.store import store_url
from taskharbor.worker import Worker
from taskharbor.worker.config import UnknownTypes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one worker process needs to know; plain enough to travel to another process."""

    app: str | None
    include: tuple[str, ...]
    handlers: tuple[str, ...]
    url: str | None
    queues: tuple[str, ...] | None
    concurrency: int
    kind: str
    lanes: tuple[str, ...] | None
    strict: bool
    unknown_types: UnknownTypes
    gpus: str | None
    lease: timedelta
    heartbeat: timedelta | None
    grace: timedelta
    poll: timedelta | None
    max_poll: timedelta | None
    prefetch: int
    rate: RateLimit | None
    name: str | None
    max_jobs: int
    max_memory: int
    scheduler: bool
    sweep_every: timedelta
    log_format: LogFormat
    log_level: LogLevel
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    metrics_tasks: bool = True


def work_here(plan: Plan, *, burst: bool, health: tuple[str, int | None], out: Output) -> int:
    """Run one worker in this process until it ends; answers the exit code."""
    from taskharbor.cli.health import serve_health

    log_to_stderr(plan.log_format, plan.log_level)
    meter = _meter(plan)
    worker = build(plan, out, meter)
    with serve_health(*health, lambda: worker.is_running), _metrics_of(plan, worker, meter):
        why = worker.run(until_idle=burst)
    out.detail(f"the worker has ended: {why}")
    return DONE


def work_in_processes(
    plan: Plan, processes: int, *, burst: bool, health: tuple[str, int | None], out: Output
) -> int:
    """Keep so many worker processes alive until told to stop; answers the exit code."""
    from taskharbor.worker.supervisor import SupervisorConfig, run_supervisor

    log_to_stderr(plan.log_format, plan.log_level)
    meter = _meter(plan)
    worker = build(plan, out, meter)  # a broken app is told here, once, and not by every process
    host, port = health
    config = SupervisorConfig(
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
    if meter is None:
        return run_supervisor(config)
    from taskharbor.cli.metering import shown
    from taskharbor.observe.fleet import Fleet

    fleet = Fleet(meter)
    with shown(_port_of(plan), meter, worker.driver.another(), fleet):
        return run_supervisor(config, fleet)


def child_worker(plan: dict[str, Any], report_to: int | None = None) -> Worker:
    """The worker of one of those processes; what the supervisor's child calls."""
    told = msgspec.convert(plan, Plan)
    log_to_stderr(told.log_format, told.log_level, alone=True)
    if report_to is None:
        return build(told)
    from taskharbor.cli.metering import report_from

    meter = _meter(told)
    worker = build(told, meter=meter)
    report_from(worker, meter, report_to)
    return worker


def _meter(plan: Plan) -> Any:
    """What counts; None without a port, and then nothing of it is even imported."""
    if plan.metrics_port is None:
        return None
    from taskharbor.observe.meter import Meter

    return Meter(tasks=plan.metrics_tasks)


def _port_of(plan: Plan) -> Any:
    from taskharbor.cli.metering import MetricsPort

    return MetricsPort(host=plan.metrics_host, port=plan.metrics_port or 0, tasks=plan.metrics_tasks)


def _metrics_of(plan: Plan, worker: Worker, meter: Any) -> AbstractContextManager[None]:
    if meter is None:
        return nullcontext()
    from taskharbor.cli.metering import shown, watch_worker

    watch_worker(worker, meter)
    return shown(_port_of(plan), meter, worker.driver.another())


def build(plan: Plan, out: Output | None = None, meter: Any = None) -> Worker:
    """The worker of a plan, with the app's tasks and the built-in handlers; `meter` times its store."""
    options: dict[str, Any] = {
        "concurrency": plan.concurrency,
        "kind": plan.kind,
        "lanes": plan.lanes,
        "strict": plan.strict,
        "unknown_types": plan.unknown_types,
        "gpus": plan.gpus,
        "lease": plan.lease,
        "heartbeat": plan.heartbeat,
        "grace": plan.grace,
        "poll": plan.poll,
        "max_poll": plan.max_poll,
        "prefetch": plan.prefetch,
        "rate": plan.rate,
        "name": plan.name,
        "max_jobs": plan.max_jobs,
        "max_memory": plan.max_memory,
        "sweep_every": plan.sweep_every,
    }
    make = _of_app if plan.app is not None else _of_store
    worker = make(plan, options, out, meter)
    for pair in plan.handlers:
        worker.register(*builtin_of(pair))
    tell_attempts(worker.events)
    return worker


def _of_app(plan: Plan, options: dict[str, Any], out: Output | None, meter: Any) -> Worker:
    from taskharbor.cli.apps import load_worker

    harbor = load_worker(plan.app or "", plan.url, plan.include)
    if isinstance(harbor, Worker):
        if meter is not None:
            _time(harbor.driver, None, meter)
        return harbor
    if meter is not None:
        _time(harbor.driver, harbor.url, meter)
    return harbor.worker(plan.queues, scheduler=plan.scheduler, **options)


def _of_store(plan: Plan, options: dict[str, Any], out: Output | None, meter: Any) -> Worker:
    address = store_url(plan.url)
    if out is not None:
        out.secrets.append(address)
    driver = connect(address)
    if meter is not None:
        _time(driver, address, meter)
    harbor = Harbor(driver=driver)  # without tasks: it brings the scheduler beside the worker
    return harbor.worker(plan.queues or (DEFAULT_QUEUE,), scheduler=plan.scheduler, **options)


def _time(driver: Driver, url: str | None, meter: Any) -> None:
    from taskharbor.cli.metering import timed

    timed(driver, url, meter)
