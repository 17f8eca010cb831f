"""taskharbor server: the HTTP API of a store, and its dashboard."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from taskharbor.cli.config import chosen_app
from taskharbor.cli.exit_codes import DONE
from taskharbor.cli.output import Output
from taskharbor.cli.parameters import parse_duration
from taskharbor.cli.session import AppArgument, IncludeFlag, UrlFlag, with_output
from taskharbor.errors import ConfigurationError
from taskharbor.harbor import Harbor
from taskharbor.model.duration import duration
from taskharbor.observe.logs import LogFormat, LogLevel, log_to_stderr
from taskharbor.settings.store import store_url


class Ui(StrEnum):
    """Whether the dashboard is served."""

    ON = "on"
    READ_ONLY = "read-only"
    OFF = "off"


@with_output
def command(
    out: Output,
    app: AppArgument = None,
    include: IncludeFlag = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; other than loopback only with --tokens.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 8484,
    fd: Annotated[
        int | None,
        typer.Option(
            "--fd",
            min=0,
            metavar="NUMBER",
            help="Listen on this open socket instead, which the starting program holds.",
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option("--tokens", metavar="FILE", help="Token file; see `taskharbor tokens`."),
    ] = None,
    allowed_hosts: Annotated[
        str | None,
        typer.Option(
            "--allowed-hosts", metavar="NAMES", help="Host names that requests may use, comma-separated."
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option("--rate", min=0, help="Requests per second and token; 0 means no limit.")
    ] = 100.0,
    driver_rate: Annotated[
        float,
        typer.Option(
            "--driver-rate",
            min=0,
            help="The same for programs with http:// as their store, counted separately.",
        ),
    ] = 1000.0,
    max_connections: Annotated[
        int, typer.Option("--max-connections", min=1, help="Most open connections.")
    ] = 1000,
    max_connections_per_address: Annotated[
        int | None,
        typer.Option(
            "--max-connections-per-address",
            min=0,
            help="The same per address; 0 means no limit. Default: half, and no limit for this machine.",
        ),
    ] = None,
    grace: Annotated[
        timedelta,
        typer.Option(
            "--grace",
            parser=parse_duration,
            metavar="DURATION",
            help="How long running requests may take after a stop.",
        ),
    ] = timedelta(seconds=30),
    ui: Annotated[
        Ui, typer.Option("--ui", help="The dashboard at /ui/; read-only: its pages change nothing.")
    ] = Ui.ON,
    name: Annotated[
        str, typer.Option("--name", help="What the dashboard calls this server, like prod.")
    ] = "",
    targets: Annotated[
        str | None,
        typer.Option(
            "--targets",
            metavar="QUEUE=DURATION,…",
            help="How long jobs of a queue may wait; 60s for the others. Colours the dashboard.",
        ),
    ] = None,
    trace_url: Annotated[
        str,
        typer.Option(
            "--trace-url",
            metavar="URL",
            help="Where a trace is shown, like https://traces.example/{trace_id}; pages of jobs link to it.",
        ),
    ] = "",
    any_type: Annotated[
        bool, typer.Option("--any-type", help="Accept jobs of types for which APP has no task.")
    ] = False,
    scheduler: Annotated[
        bool,
        typer.Option("--scheduler/--no-scheduler", help="Also fire schedules and delete old jobs."),
    ] = True,
    metrics: Annotated[
        bool,
        typer.Option("--metrics/--no-metrics", help="Serve GET /metrics if prometheus-client is installed."),
    ] = True,
    accept_now: Annotated[
        bool, typer.Option("--accept-now", help="Let callers set the time; for tests only.")
    ] = False,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Format of log lines.")
    ] = LogFormat.CONSOLE,
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="Lowest level to log.")] = LogLevel.INFO,
    url: UrlFlag = None,
) -> int:
    """Serve the HTTP API and the dashboard until stopped.

    With APP, jobs get the options of its tasks and their arguments are checked. Without a token file, only
    callers on this machine are served, as admin. SIGTERM or Ctrl+C: answer running requests, end streams,
    exit with code 0. A second one, at least a second later, exits at once.
    """
    try:
        from taskharbor.web.app import create_app
        from taskharbor.web.config import ServerConfig
        from taskharbor.web.server import bind, inherit, serve
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"the server needs {error.name}: pip install 'taskharbor[server]'") from None

    log_to_stderr(log_format, log_level)
    if tokens is not None and not tokens.is_file():
        raise ConfigurationError(
            f"the token file {tokens} does not exist; create it with `taskharbor tokens create --role ROLE`"
        )
    config = ServerConfig(
        tokens=tokens,
        allowed_hosts=_names(allowed_hosts),
        rate_per_second=rate,
        driver_rate_per_second=driver_rate,
        max_connections=max_connections,
        max_connections_per_address=max_connections_per_address,
        ui=ui.value,
        name=name,
        targets=_targets(targets),
        trace_url=trace_url,
        any_type=any_type,
        scheduler=scheduler,
        accepts_now=accept_now,
        metrics=metrics and find_spec("prometheus_client") is not None,
    )
    # Ours is the server below: it believes no forwarded address, and listens to others with tokens only.
    served = create_app(_harbor(out, app, url, include), config, local_callers_are_admin=tokens is None)
    listener = bind(host, port) if fd is None else inherit(fd)
    serve(served, listener, grace_seconds=grace.total_seconds())
    return DONE


def _harbor(out: Output, app: str | None, url: str | None, include: list[str] | None) -> Harbor:
    app = chosen_app(app)
    if app is None:
        address = store_url(url)
        out.secrets.append(address)
        return Harbor(address)
    from taskharbor.cli.apps import load_app

    return load_app(app, url, include)


def _targets(text: str | None) -> dict[str, timedelta]:
    """`mail=60s,reports=1h`."""
    found = {}
    for part in _names(text) or ():
        queue, sign, span = part.partition("=")
        if not sign or not queue:
            raise ConfigurationError(f"--targets {part!r} must look like mail=60s")
        found[queue.strip()] = duration(span.strip(), f"the target of {queue}")
    return found


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())
