"""taskharbor health: whether a server or worker process is alive, for health checks of containers."""

from __future__ import annotations

import http.client
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

import typer

from taskharbor.cli.exit_codes import DONE, ERROR, UsageError
from taskharbor.cli.output import Output
from taskharbor.cli.session import with_output

_USUAL = "http://127.0.0.1:8484"
_PROBES = ("/livez", "/readyz")


@with_output
def command(
    out: Output,
    url: Annotated[
        str,
        typer.Argument(metavar="[URL]", help="Address of the process; /livez is asked if it names no path."),
    ] = _USUAL,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, max=60, help="Seconds to wait for the answer.")
    ] = 5.0,
) -> int:
    """Ask a server, or a worker with --health-port, whether it is alive. Exit code 0 if it is, else 1.

    It does not ask the store: a store that is away is no reason to restart a process. To ask for
    that too, name /readyz in the URL.
    """
    place = _place(url)
    status, text = _ask(place, timeout)
    is_healthy = status == http.client.OK
    out.document({"url": place.geturl(), "is_healthy": is_healthy, "status": status}, [text])
    return DONE if is_healthy else ERROR


def _place(url: str) -> SplitResult:
    place = urlsplit(url if "://" in url else f"http://{url}")
    if place.scheme not in ("http", "https") or not place.hostname:
        raise UsageError(f"{url!r} is no address of a server; write http://HOST:PORT")
    path = place.path.rstrip("/")
    return place._replace(path=path if path.endswith(_PROBES) else f"{path}/livez", query="", fragment="")


def _ask(place: SplitResult, timeout: float) -> tuple[int | None, str]:
    """The status of the answer, and a line about it; no status if none came."""
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(place.hostname or "", place.port, timeout=timeout)
        try:
            connection.request("GET", place.path)
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        return None, f"{place.geturl()} does not answer: {error}"
    return status, f"{place.geturl()} answers {status}"
