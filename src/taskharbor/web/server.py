"""Serve an App with uvicorn: bind, tell when ready, stop in good order.

SIGTERM, SIGINT ──► streams and long waits end ──► running requests are answered ──► store closed
a second one    ──► at once
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import uvicorn

from taskharbor.errors import ConfigurationError
from taskharbor.web.app import App
from taskharbor.web.descriptors import room_for
from taskharbor.web.notify import notify
from taskharbor.web.protocol import bounded, check_uvicorn
from taskharbor.worker.signals import StopWishes, stop_signals

_log = logging.getLogger("taskharbor.server")
_BACKLOG = 2048
_KEEP_ALIVE_SECONDS = 75
_NEW_OBJECTS = 20_000
"""Between two looks of the collector: one batch makes some thousands, and none of them in a circle."""


def serve(app: App, host: str, port: int, *, grace_seconds: float = 30.0) -> None:
    """Serve until told to stop. Port 0 takes a free one, and the log says which.

    Raises:
        ConfigurationError: the address cannot be used, or is open to others while no token is set.
    """
    refuse_open_door(app, host)
    check_uvicorn()
    app.service.connections.most = room_for(app.service.config.max_connections)
    listener = bind(host, port)
    server = GracefulServer(app, listener, grace_seconds)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()


def refuse_open_door(app: App, host: str) -> None:
    """Without tokens everybody who reaches us is admin: so only this machine may reach us."""
    if app.service.has_door or is_loopback(host):
        return
    raise ConfigurationError(
        f"refusing to listen on {host}: without a token only this machine is served. "
        "Make one with `taskharbor tokens create --role ROLE`, and start the server with --tokens FILE"
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigurationError where there can be none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        return _bound(socket.socket(family, kind, protocol), address)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def _bound(listener: socket.socket, address: Any) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


class GracefulServer(uvicorn.Server):
    """uvicorn, with our way to stop and to say that we are ready."""

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
            # What is there now stays for ever: the collector need not look at it again and again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(_NEW_OBJECTS)
            _log.info("serving on http://%s", self._where)
            notify("READY=1")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours instead of uvicorn's, which would end the process by the signal and not by code 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        wishes, numbers = StopWishes(), stop_signals()

        def asked_to_stop() -> None:
            if wishes.heard():
                self.stop()

        for number in numbers:
            loop.add_signal_handler(number, asked_to_stop)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Stop in good order; called again, at once."""
        if self.should_exit:
            self.force_exit = True
            return
        _log.info("stopping: no new connections; requests that run are answered")
        notify("STOPPING=1")
        self._app.stop()
        self.should_exit = True


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
