"""taskharbor scheduler: what happens to jobs as time passes."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Annotated

import typer

from taskharbor.cli.config import chosen_app
from taskharbor.cli.exit_codes import DONE
from taskharbor.cli.output import Output
from taskharbor.cli.parameters import parse_duration
from taskharbor.cli.session import AppArgument, IncludeFlag, UrlFlag, with_output
from taskharbor.drivers import Driver, connect
from taskharbor.events import EventBus
from taskharbor.harbor import Harbor
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.worker_options import STORE_WAIT
from taskharbor.observe.logs import LogFormat, LogLevel, log_to_stderr
from taskharbor.settings.store import store_url
from taskharbor.worker.opening import opened
from taskharbor.worker.signals import stop_signals
from taskharbor.worker.timing import Timing


@with_output
def command(
    out: Output,
    app: AppArgument = None,
    include: IncludeFlag = None,
    name: Annotated[str, typer.Option("--name", help="Name in logs.")] = "scheduler",
    sweep_every: Annotated[
        timedelta,
        typer.Option(
            "--sweep-every",
            parser=parse_duration,
            metavar="DURATION",
            help="How often to look for expired leases.",
        ),
    ] = timedelta(seconds=2),
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", min=1, max=65535, help="Serve Prometheus metrics on this port."),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="Address for --metrics-port.")
    ] = "127.0.0.1",
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Format of log lines.")
    ] = LogFormat.CONSOLE,
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="Lowest level to log.")] = LogLevel.INFO,
    url: UrlFlag = None,
) -> int:
    """Fire schedules, recover jobs of lost workers, start second runs, delete old jobs.

    Run as many as you like: one leads, the others wait. The schedules of APP are stored first; without
    APP, those already in the store are used.
    """
    app = chosen_app(app)
    log_to_stderr(log_format, log_level)
    harbor = None if app is None else _loaded(app, url, include)
    driver, address = _driver(out, harbor, url)
    events = EventBus()
    with _metrics(driver, address, events, metrics_host, metrics_port):
        asyncio.run(_run(driver, harbor, name, events, sweep_every))
    return DONE


def _metrics(
    driver: Driver, address: str | None, events: EventBus, host: str, port: int | None
) -> AbstractContextManager[None]:
    if port is None:
        return nullcontext()
    from taskharbor.cli.metrics_port import MetricsPort, shown, timed
    from taskharbor.observe.meter import Meter

    meter = Meter()
    meter.listen(events)
    return shown(MetricsPort(host=host, port=port), meter, timed(driver, address, meter).another())


def _loaded(app: str, url: str | None, include: list[str] | None) -> Harbor:
    from taskharbor.cli.apps import load_app

    return load_app(app, url, include)


def _driver(out: Output, harbor: Harbor | None, url: str | None) -> tuple[Driver, str | None]:
    if harbor is not None:
        return harbor.driver.another(), harbor.url
    address = store_url(url)
    out.secrets.append(address)
    return connect(address), address


async def _run(
    driver: Driver, harbor: Harbor | None, name: str, events: EventBus, sweep_every: timedelta
) -> None:
    from taskharbor.scheduler import Scheduler

    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in stop_signals():
        loop.add_signal_handler(number, stopping.set)
    if not await opened(driver, STORE_WAIT, stopping, Timing(), Entropy()):
        return
    async with driver:
        scheduler = Scheduler(driver, name=name, sweep_every=sweep_every, events=events)
        for number in stop_signals():
            loop.add_signal_handler(number, scheduler.stop)
        if stopping.is_set():
            return
        if harbor is None:
            await scheduler.arun()
            return
        await harbor.schedules.astore()
        await harbor.aclose()
        async with harbor.schedules.kept(driver, SystemClock()):
            await scheduler.arun()
