"""Health probes of one worker process, served by their own thread however busy the worker is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from taskharbor.errors import ConfigurationError
from taskharbor.worker.health import HealthServer


@contextmanager
def serve_health(host: str, port: int | None, is_ready: Callable[[], bool]) -> Iterator[None]:
    """Serve /livez and /readyz while the block runs; without a port, do nothing.

    Raises:
        ConfigurationError: the port cannot be used.
    """
    if port is None:
        yield
        return
    probes = _Probes(HealthServer(host, port, lambda: True, is_ready))
    probes.start()
    if probes.error is not None:
        raise ConfigurationError(f"cannot listen on the health port {host}:{port}: {probes.error.strerror}")
    try:
        yield
    finally:
        probes.stop()


class _Probes:
    """An event loop in a thread, with the server in it."""

    def __init__(self, server: HealthServer) -> None:
        self._server = server
        self._thread = threading.Thread(target=self._run, name="taskharbor-health", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._has_started = threading.Event()
        self.error: OSError | None = None

    def start(self) -> None:
        self._thread.start()
        self._has_started.wait()

    def stop(self) -> None:
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self.error = error
        finally:
            self._has_started.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        async with self._server:
            self._has_started.set()
            await self._stopping.wait()
