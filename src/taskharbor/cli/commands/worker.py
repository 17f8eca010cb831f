"""taskharbor worker: run the tasks of an app."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from taskharbor.cli.config import chosen_app, chosen_include
from taskharbor.cli.exit_codes import UsageError
from taskharbor.cli.output import Output
from taskharbor.cli.parameters import parse_duration
from taskharbor.cli.session import AppArgument, IncludeFlag, UrlFlag, was_given, with_output
from taskharbor.cli.worker_flags import WORKER_FLAGS, chosen_flags, with_worker_options
from taskharbor.observe.logs import LogFormat, LogLevel

_SPAN: dict[str, Any] = {"parser": parse_duration, "metavar": "DURATION"}


@with_output
@with_worker_options
def command(
    out: Output,
    /,
    app: AppArgument = None,
    include: IncludeFlag = None,
    processes: Annotated[int, typer.Option("--processes", min=1, max=1024, help="Worker processes.")] = 1,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", "--burst", help="Stop when no job is left that could run now.")
    ] = False,
    handle: Annotated[
        list[str] | None,
        typer.Option(
            "--handle",
            metavar="TYPE=HANDLER",
            help="Run jobs of this type with a built-in handler: echo, fail or sleep. APP is not needed.",
        ),
    ] = None,
    scheduler: Annotated[
        bool,
        typer.Option("--scheduler/--no-scheduler", help="Also fire schedules and delete old jobs."),
    ] = True,
    sweep_every: Annotated[
        timedelta,
        typer.Option("--sweep-every", help="How often the scheduler looks for expired leases.", **_SPAN),
    ] = timedelta(seconds=2),
    health_port: Annotated[
        int | None,
        typer.Option("--health-port", min=1, max=65535, help="Serve /livez and /readyz on this port."),
    ] = None,
    health_host: Annotated[
        str, typer.Option("--health-host", help="Address for --health-port.")
    ] = "127.0.0.1",
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", min=1, max=65535, help="Serve Prometheus metrics on this port."),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="Address for --metrics-port.")
    ] = "127.0.0.1",
    metrics_tasks: Annotated[
        bool,
        typer.Option("--metrics-tasks/--no-metrics-tasks", help="Label metrics by task, or only by queue."),
    ] = True,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Format of log lines.")
    ] = LogFormat.CONSOLE,
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="Lowest level to log.")] = LogLevel.INFO,
    url: UrlFlag = None,
    **options: Any,
) -> int:
    """Run jobs until stopped.

    SIGTERM or Ctrl+C: stop claiming, finish running jobs, exit with code 0. A second one, at least a second
    later, releases the running jobs and exits at once. SIGUSR1 stops claiming but keeps the process.
    SIGQUIT prints all stacks. SIGHUP reopens log files; closing the terminal stops the worker.

    Use --url if the Harbor of APP names no store. APP may also be a Worker built in code, with its own
    settings.
    """
    from taskharbor.cli.worker_launch import LaunchPlan, work_here, work_in_processes

    app = chosen_app(app)
    if app is None and not handle:
        raise UsageError("no app given: run `taskharbor worker module:attribute`, for example app:harbor")
    if options["gpus"] is not None and processes > 1:
        raise UsageError(
            "--gpus with --processes would give each device to several jobs: start one worker per set of "
            "devices, such as --gpus 0,1 and --gpus 2,3"
        )
    plan = LaunchPlan(
        app=app,
        include=chosen_include(include),
        handlers=tuple(handle or ()),
        url=url,
        flags=chosen_flags(options),
        scheduler=scheduler,
        sweep_every=sweep_every,
        log_format=log_format,
        log_level=log_level,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        metrics_tasks=metrics_tasks,
    )
    health = (health_host, health_port)
    if app is not None:
        _check_app(app, url, plan.include)
    if processes == 1:
        return work_here(plan, until_idle=until_idle, health=health, out=out)
    return work_in_processes(plan, processes, until_idle=until_idle, health=health, out=out)


def _check_app(app: str, url: str | None, include: tuple[str, ...]) -> None:
    """What the app's code contradicts is refused before anything starts: a store, settings of a worker."""
    from taskharbor.cli.apps import load_worker
    from taskharbor.worker import Worker

    if not isinstance(load_worker(app, url, include), Worker):
        return
    names = (*WORKER_FLAGS, "scheduler", "sweep_every")
    flags = [f"--{name.replace('_', '-')}" for name in names if was_given(name)]
    if flags:
        raise UsageError(f"{app} is a Worker with its own settings: leave out {', '.join(flags)}")
