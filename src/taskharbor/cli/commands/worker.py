"""taskharbor worker: run the tasks of an app."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer

from taskharbor.cli.config import chosen_app, chosen_include
from taskharbor.cli.exit_codes import UsageError
from taskharbor.cli.output import Output
from taskharbor.cli.parameters import NONE, parse_duration, parse_rate, parse_size
from taskharbor.cli.session import AppArgument, IncludeFlag, UrlFlag, was_said, with_output
from taskharbor.observe.logs import LogFormat, LogLevel

_OF_THE_WORKER = (
    *(
        "queues",
        "concurrency",
        "kind",
        "lanes",
        "strict",
        "unknown_types",
        "gpus",
        "lease",
        "heartbeat",
        "grace",
    ),
    *("poll", "max_poll", "prefetch", "rate", "name", "max_jobs", "max_memory", "scheduler", "sweep_every"),
)
_SPAN: dict[str, Any] = {"parser": parse_duration, "metavar": "DURATION"}


class Unknown(StrEnum):
    SKIP = "skip"
    FAIL = "fail"


@with_output
def command(
    out: Output,
    app: AppArgument = None,
    include: IncludeFlag = None,
    queues: Annotated[
        str | None,
        typer.Option("--queues", "-q", help="Queues, with commas. Default: those of the app's tasks."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Jobs at once, per process.")
    ] = 10,
    processes: Annotated[int, typer.Option("--processes", min=1, max=1024, help="Worker processes.")] = 1,
    kind: Annotated[str, typer.Option("--kind", help="cpu, gpu, any or another lane to prefer.")] = "any",
    lanes: Annotated[
        str | None,
        typer.Option("--lanes", help="The lanes to claim, best first, with commas; they replace --kind's."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Empty the first queue before the next; else they take turns.")
    ] = False,
    unknown_types: Annotated[
        Unknown,
        typer.Option(
            "--unknown-types", help="Jobs of tasks that it does not know: skip leaves them to others."
        ),
    ] = Unknown.SKIP,
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
        typer.Option(
            "--heartbeat", help="How often leases are extended. Default: a third of --lease.", **_SPAN
        ),
    ] = None,
    grace: Annotated[
        timedelta, typer.Option("--grace", help="How long running jobs may go on after a stop.", **_SPAN)
    ] = timedelta(seconds=30),
    poll: Annotated[
        timedelta | None,
        typer.Option("--poll", help="How often an idle worker looks for jobs besides wake-ups.", **_SPAN),
    ] = None,
    max_poll: Annotated[
        timedelta | None,
        typer.Option("--max-poll", help="Look less and less often while idle, down to this.", **_SPAN),
    ] = None,
    prefetch: Annotated[
        int, typer.Option("--prefetch", min=0, help="Jobs to claim ahead, beyond those that run.")
    ] = 0,
    rate: Annotated[
        Any,
        typer.Option("--rate", parser=parse_rate, metavar="N/SPAN", help="How many this worker may start."),
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", "--burst", help="Stop when nothing is left that could run now.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="A name for logs and `workers list`. Default: host and pid.")
    ] = None,
    max_jobs: Annotated[
        int,
        typer.Option(
            "--max-jobs", min=0, help="End after so many jobs; with --processes a new process goes on."
        ),
    ] = 0,
    max_memory: Annotated[
        int,
        typer.Option(
            "--max-memory",
            parser=parse_size,
            metavar="SIZE",
            help="The same after using this much memory, like 2GiB.",
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
    sweep_every: Annotated[
        timedelta,
        typer.Option("--sweep-every", help="How often that scheduler looks for lost leases.", **_SPAN),
    ] = timedelta(seconds=2),
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

    SIGTERM or Ctrl+C: claim nothing more, finish, end with code 0; one more, at least a second later, gives
    the running jobs back at once. SIGQUIT prints all stacks, SIGUSR1 stops claiming and stays. SIGHUP
    reopens log files; when the terminal of the worker is closed, it stops like SIGTERM.

    --url is for an app whose Harbor names no store itself. APP may also name a Worker that was built in
    code: it brings its own settings.
    """
    from taskharbor.cli.worker_launch import LaunchPlan, work_here, work_in_processes

    app = chosen_app(app)
    if app is None and not handle:
        raise UsageError("which app? `taskharbor worker module:attribute`, for example app:harbor")
    if gpus is not None and processes > 1:
        raise UsageError(
            "--gpus with --processes would give each device to several jobs: start one worker per set of "
            "devices, such as --gpus 0,1 and --gpus 2,3"
        )
    plan = LaunchPlan(
        app=app,
        include=chosen_include(include),
        handlers=tuple(handle or ()),
        url=url,
        queues=_names(queues, "--queues names no queue; leave it out for all queues of the app"),
        concurrency=concurrency,
        kind=kind,
        lanes=_names(lanes, "--lanes names no lane; leave it out for those of --kind"),
        strict=strict,
        unknown_types=unknown_types.value,
        gpus=gpus,
        lease=lease,
        heartbeat=heartbeat,
        grace=grace,
        poll=poll,
        max_poll=max_poll,
        prefetch=prefetch,
        rate=None if rate == NONE else rate,
        name=name,
        max_jobs=max_jobs,
        max_memory=max_memory,
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
    said = [f"--{name.replace('_', '-')}" for name in _OF_THE_WORKER if was_said(name)]
    if said:
        raise UsageError(f"{app} is a worker with settings of its own: leave {', '.join(said)} out")


def _names(text: str | None, complaint: str) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError(complaint)
    return names
