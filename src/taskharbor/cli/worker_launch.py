"""Launch what `taskharbor worker` asks for: one worker here, or several processes."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from taskharbor.cli.exit_codes import DONE
from taskharbor.cli.output import Output
from taskharbor.cli.worker_flags import options_of
from taskharbor.drivers import Driver, connect
from taskharbor.errors import ConfigurationError
from taskharbor.harbor import Harbor
from taskharbor.model.job import Job
from taskharbor.observe.logs import LogFormat, LogLevel, log_attempts, log_to_stderr
from taskharbor.settings.store import store_url
from taskharbor.worker import Worker
from taskharbor.worker.attempt import JobContext


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """The settings of one worker process, in types that can be sent to another process."""

    app: str | None
    include: tuple[str, ...]
    handlers: tuple[str, ...]
    url: str | None
    flags: dict[str, Any]
    """The options of the worker that have a flag."""
    scheduler: bool
    sweep_every: timedelta
    log_format: LogFormat
    log_level: LogLevel
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    metrics_tasks: bool = True


def work_here(plan: LaunchPlan, *, until_idle: bool, health: tuple[str, int | None], out: Output) -> int:
    """Run one worker in this process until it ends. Returns the exit code."""
    from taskharbor.cli.health import serve_health

    log_to_stderr(plan.log_format, plan.log_level)
    meter = _meter(plan)
    worker = build(plan, out, meter)
    with serve_health(*health, lambda: worker.is_running), _metrics_of(plan, worker, meter):
        why = worker.run(until_idle=until_idle)
    out.detail(f"the worker stopped: {why}")
    return DONE


def work_in_processes(
    plan: LaunchPlan, processes: int, *, until_idle: bool, health: tuple[str, int | None], out: Output
) -> int:
    """Keep this many worker processes running until a signal. Returns the exit code."""
    from taskharbor.worker.supervisor import SupervisorConfig, run_supervisor

    log_to_stderr(plan.log_format, plan.log_level)
    meter = _meter(plan)
    worker = build(plan, out, meter)  # report a broken app once here, not in every process
    host, port = health
    config = SupervisorConfig(
        app=f"{__name__}:child_worker",
        processes=processes,
        options={"plan": msgspec.to_builtins(plan)},
        path=(os.getcwd(),),
        until_idle=until_idle,
        grace_seconds=options_of(plan.flags).grace.total_seconds(),
        health_port=port,
        health_host=host,
        log_level=plan.log_level.upper(),
    )
    if meter is None:
        return run_supervisor(config)
    from taskharbor.cli.metrics_port import shown
    from taskharbor.observe.multiprocess import MultiprocessMetrics

    fleet = MultiprocessMetrics(meter)
    with shown(_port_of(plan), meter, worker.driver.another(), fleet):
        return run_supervisor(config, fleet)


def child_worker(plan: dict[str, Any], report_to: int | None = None) -> Worker:
    """The worker of one of those processes; called in the child."""
    launch = msgspec.convert(plan, LaunchPlan)
    log_to_stderr(launch.log_format, launch.log_level, alone=True)
    if report_to is None:
        return build(launch)
    from taskharbor.cli.metrics_port import report_from

    meter = _meter(launch)
    worker = build(launch, meter=meter)
    report_from(worker, meter, report_to)
    return worker


def _meter(plan: LaunchPlan) -> Any:
    """The meter; None without a metrics port, and then nothing of it is imported."""
    if plan.metrics_port is None:
        return None
    from taskharbor.observe.meter import Meter

    return Meter(tasks=plan.metrics_tasks)


def _port_of(plan: LaunchPlan) -> Any:
    from taskharbor.cli.metrics_port import MetricsPort

    return MetricsPort(host=plan.metrics_host, port=plan.metrics_port or 0, tasks=plan.metrics_tasks)


def _metrics_of(plan: LaunchPlan, worker: Worker, meter: Any) -> AbstractContextManager[None]:
    if meter is None:
        return nullcontext()
    from taskharbor.cli.metrics_port import shown, watch_worker

    watch_worker(worker, meter)
    return shown(_port_of(plan), meter, worker.driver.another())


def build(plan: LaunchPlan, out: Output | None = None, meter: Any = None) -> Worker:
    """The worker of a plan, with the app's tasks and built-in handlers; `meter` times its store."""
    make = _of_app if plan.app is not None else _of_store
    worker = make(plan, out, meter)
    for pair in plan.handlers:
        worker.register(*builtin_of(pair))
    log_attempts(worker.events)
    return worker


def _of_app(plan: LaunchPlan, out: Output | None, meter: Any) -> Worker:
    from taskharbor.cli.apps import load_worker

    harbor = load_worker(plan.app or "", plan.url, plan.include)
    if isinstance(harbor, Worker):
        if meter is not None:
            _time(harbor.driver, None, meter)
        return harbor
    if meter is not None:
        _time(harbor.driver, harbor.url, meter)
    return _worker_of(harbor, plan)


def _of_store(plan: LaunchPlan, out: Output | None, meter: Any) -> Worker:
    address = store_url(plan.url)
    if out is not None:
        out.secrets.append(address)
    driver = connect(address)
    if meter is not None:
        _time(driver, address, meter)
    harbor = Harbor(driver=driver)  # without tasks: it brings the scheduler beside the worker
    return _worker_of(harbor, plan)


def _worker_of(harbor: Harbor, plan: LaunchPlan) -> Worker:
    return harbor.worker(
        options=options_of(plan.flags), scheduler=plan.scheduler, sweep_every=plan.sweep_every
    )


def _time(driver: Driver, url: str | None, meter: Any) -> None:
    from taskharbor.cli.metrics_port import timed

    timed(driver, url, meter)


# ------------------------------------------------------------------ built-in handlers

# To try a store without an app: `taskharbor worker --handle mail.send=echo`.

Builtin = Callable[[JobContext, Job], Awaitable[Any]]


async def echo(ctx: JobContext, job: Job) -> Any:
    """Return the payload."""
    return _value(job)


async def fail(ctx: JobContext, job: Job) -> None:
    """Fail, with the payload's `message` if it has one."""
    value = _value(job)
    message = value.get("message") if isinstance(value, dict) else None
    raise RuntimeError(str(message or "this handler always fails"))


async def sleep(ctx: JobContext, job: Job) -> None:
    """Sleep for the payload's `seconds`, or one."""
    value = _value(job)
    seconds = value.get("seconds", 1) if isinstance(value, dict) else 1
    await ctx.clock.sleep(float(seconds))


BUILTINS: dict[str, Builtin] = {"echo": echo, "fail": fail, "sleep": sleep}


def builtin_of(pair: str) -> tuple[str, Builtin]:
    """TYPE=echo, TYPE=fail or TYPE=sleep."""
    type_name, sign, name = pair.partition("=")
    if not sign or not type_name or name not in BUILTINS:
        raise ConfigurationError(f"--handle {pair!r} must look like TYPE={'|'.join(BUILTINS)}")
    return type_name, BUILTINS[name]


def _value(job: Job) -> Any:
    return msgspec.json.decode(job.payload) if job.payload else None
