"""taskharbor worker: run the tasks of an app."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from taskharbor.cli.config import chosen_app
from taskharbor.cli.exits import UsageProblem
from taskharbor.cli.logs import LogFormat, LogLevel
from taskharbor.cli.output import Output
from taskharbor.cli.parameters import parse_duration, parse_size
from taskharbor.cli.session import AppArgument, UrlFlag, was_said, with_output

_SPAN: dict[str, Any] = {"parser": parse_duration, "metavar": "DURATION"}


@with_output
def command(
    out: Output,
    app: AppArgument = None,
    queues: Annotated[
        str | None,
        typer.Option("--queues", "-q", help="With commas; the queues of the app's tasks when left out."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Jobs at once, per process.")
    ] = 10,
    processes: Annotated[int, typer.Option("--processes", min=1, max=1024, help="Worker processes.")] = 1,
    kind: Annotated[str, typer.Option("--kind", help="cpu, gpu, any or another lane to prefer.")] = "any",
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus", help="With --kind gpu: all, or devices with commas; each job has one of its own."
        ),
    ] = None,
    lease: Annotated[
        timedelta, typer.Option("--lease", help="How long a job stays ours without a heartbeat.", **_SPAN)
    ] = timedelta(seconds=30),
    heartbeat: Annotated[
        timedelta | None,
        typer.Option("--heartbeat", help="How often leases are extended; a third of it.", **_SPAN),
    ] = None,
    grace: Annotated[
        timedelta, typer.Option("--grace", help="How long running jobs may go on after a stop.", **_SPAN)
    ] = timedelta(seconds=30),
    burst: Annotated[
        bool, typer.Option("--burst", help="Stop when nothing is left that could run now.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="What it is called; host and pid when left out.")
    ] = None,
    max_jobs: Annotated[
        int, typer.Option("--max-jobs", min=0, help="End (or with --processes start anew) after so many.")
    ] = 0,
    max_memory: Annotated[
        int,
        typer.Option(
            "--max-memory", parser=parse_size, metavar="SIZE", help="The same by memory, like 2GiB."
        ),
    ] = 0,
    handle: Annotated[
        list[str] | None,
        typer.Option(
            "--handle", metavar="TYPE=HANDLER", help="Run a type by echo, fail or sleep; works without APP."
        ),
    ] = None,
    scheduler: Annotated[
        bool,
        typer.Option(
            "--scheduler/--no-scheduler", help="Fire schedules and forget old jobs beside the work."
        ),
    ] = True,
    health_port: Annotated[
        int | None, typer.Option("--health-port", min=1, max=65535, help="Answer /livez and /readyz here.")
    ] = None,
    health_host: Annotated[
        str, typer.Option("--health-host", help="The address of --health-port.")
    ] = "127.0.0.1",
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=1, max=65535, help="Show Prometheus metrics here.")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="The address of --metrics-port.")
    ] = "127.0.0.1",
    metrics_tasks: Annotated[
        bool,
        typer.Option(
            "--metrics-tasks/--no-metrics-tasks", help="Tell tasks apart in metrics, or only queues."
        ),
    ] = True,
    log_format: Annotated[LogFormat, typer.Option("--log-format", help="How logs look.")] = LogFormat.CONSOLE,
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="What is logged.")] = LogLevel.INFO,
    url: UrlFlag = None,
) -> int:
    """Run jobs until stopped.

    SIGTERM or Ctrl+C: claim nothing more, finish, end with code 0; a second one gives the running
    jobs back at once. SIGQUIT prints all stacks, SIGUSR1 stops claiming and stays. SIGHUP reopens log
    files; when the terminal of the worker is closed, it stops like SIGTERM.

    --url is for an app whose Harbor names no store itself.
    """
    from taskharbor.cli.apps import load_app
    from taskharbor.cli.work import Plan, work_here, work_in_processes

    app = chosen_app(app)
    if app is None and not handle:
        raise UsageProblem("which app? `taskharbor worker module:attribute`, for example app:harbor")
    if gpus is not None and processes > 1:
        raise UsageProblem(
            "--gpus with --processes would give each device to several jobs: start one worker per set of "
            "devices, such as --gpus 0,1 and --gpus 2,3"
        )
    plan = Plan(
        app=app,
        handlers=tuple(handle or ()),
        url=url,
        queues=_names(queues),
        concurrency=concurrency,
        kind=kind,
        gpus=gpus,
        lease=lease,
        heartbeat=heartbeat,
        grace=grace,
        name=name,
        max_jobs=max_jobs,
        max_memory=max_memory,
        scheduler=scheduler,
        log_format=log_format,
        log_level=log_level,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        metrics_tasks=metrics_tasks,
    )
    health = (health_host, health_port)
    if app is not None and was_said("url"):
        load_app(app, url)  # a store that the app's code contradicts is refused before anything starts
    if processes == 1:
        return work_here(plan, burst=burst, health=health, out=out)
    return work_in_processes(plan, processes, burst=burst, health=health, out=out)


def _names(queues: str | None) -> tuple[str, ...] | None:
    if queues is None:
        return None
    names = tuple(name.strip() for name in queues.split(",") if name.strip())
    if not names:
        raise UsageProblem("--queues names no queue; leave it out for all queues of the app")
    return names
