"""Serve an App with uvicorn: bind, notify systemd when ready, shut down gracefully.

SIGTERM, SIGINT ──► streams and long polls end ──► running requests are answered ──► store closed
a second signal ──► exit at once
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import uvicorn

from taskharbor.errors import ConfigurationError
from taskharbor.web.app import App
from taskharbor.web.protocol import bounded, check_uvicorn
from taskharbor.worker.signals import StopRequests, stop_signals

_log = logging.getLogger("taskharbor.server")
FILES_BESIDES = 128
"""Files a server needs besides its connections: the store, logs, the scheduler."""

_BACKLOG = 2048
_SEND_BUFFER = 128 * 1024
"""What the system keeps of answers that a caller has not read. It would keep megabytes for each of them."""
_KEEP_ALIVE_SECONDS = 75
_NEW_OBJECTS = 20_000
"""Objects between two runs of the garbage collector: a batch makes thousands, none of them in a cycle."""


def serve(app: App, listener: socket.socket, *, grace_seconds: float = 30.0) -> None:
    """Serve on this socket (`bind`, `inherit`) until a signal or `stop`; then close it.

    Raises:
        ConfigurationError: others reach the address while there are no tokens.
    """
    with listener:
        refuse_open_address(app, listener.getsockname()[0])
        check_uvicorn()
        app.service.connections.most = raise_file_limit(app.service.config.max_connections)
        GracefulServer(app, listener, grace_seconds).run(sockets=[listener])


def refuse_open_address(app: App, host: str) -> None:
    """Without tokens every caller is admin, so only this machine may reach the server."""
    if app.service.has_callers or is_loopback(host):
        return
    raise ConfigurationError(
        f"refusing to listen on {host}: without tokens, only callers on this machine are served. "
        "Create a token with `taskharbor tokens create --role ROLE`, then start the server with --tokens FILE"
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address; port 0 picks a free one. Raises ConfigurationError if it cannot be used."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        return _bound(socket.socket(family, kind, protocol), address)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def inherit(number: int) -> socket.socket:
    """The open socket of this number, which the parent made. Raises ConfigurationError if it is none."""
    try:
        listener = socket.socket(fileno=number)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on --fd {number}: {error.strerror or error}") from None
    if listener.family not in (socket.AF_INET, socket.AF_INET6) or listener.type != socket.SOCK_STREAM:
        listener.detach()
        raise ConfigurationError(f"cannot listen on --fd {number}: it is not a TCP socket")
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    return listener


def _bound(listener: socket.socket, address: Any) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


class GracefulServer(uvicorn.Server):
    """uvicorn, with our way to shut down and to report readiness."""

    def __init__(self, app: App, listener: socket.socket, grace_seconds: float) -> None:
        self._app = app
        self._where = _address(listener)
        config = uvicorn.Config(
            app,
            http=bounded(app.service.config.request_seconds, app.service.connections),
            ws="none",
            lifespan="on",
            access_log=False,
            log_config=None,
            log_level=logging.WARNING,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(grace_seconds)),
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            # What exists now lives as long as the process: the collector need not scan it again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(_NEW_OBJECTS)
            _log.info("serving on http://%s", self._where)
            if self._app.service.config.ui != "off":
                _log.info("dashboard: http://%s/ui/", self._where)
            notify_systemd("READY=1")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours instead of uvicorn's, which would end the process by the signal and not with code 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        requests, numbers = StopRequests(), stop_signals()

        def asked_to_stop() -> None:
            if requests.received():
                self.stop()

        for number in numbers:
            loop.add_signal_handler(number, asked_to_stop)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Shut down gracefully; at once when called a second time."""
        if self.should_exit:
            self.force_exit = True
            return
        _log.info("stopping: no new connections are accepted; running requests are answered")
        notify_systemd("STOPPING=1")
        self._app.stop()
        self.should_exit = True


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def raise_file_limit(connections: int) -> int:
    """Raise this process's limit of open files to fit these connections. Returns how many do fit."""
    try:
        import resource
    except ModuleNotFoundError:  # pragma: no cover - not a Unix
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES_BESIDES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):
        raised = soft
    if raised >= wanted:
        return connections
    fits = max(raised - FILES_BESIDES, raised // 2, 1)
    _log.warning(
        "this process may open %d files, too few for %d connections; accepting %d. Raise the limit with "
        "`ulimit -n %d` or LimitNOFILE=%d, or set a lower --max-connections",
        raised, connections, fits, wanted, wanted,
    )  # fmt: skip
    return fits


def notify_systemd(state: str) -> None:
    """Send READY=1 or STOPPING=1 to systemd (Type=notify). Does nothing without it; errors are ignored."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.connect(address)
            channel.sendall(state.encode())
    except OSError:
        pass
