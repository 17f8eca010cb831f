"""Health checks of a process over HTTP: /livez and /readyz."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Self

_PATIENCE_SECONDS = 5.0
_MOST_CALLERS = 32  # at once: silent connections must not use up a worker's files


class HealthServer:
    """`/livez`: the event loop runs. `/readyz`: jobs run, or would if there were any.

    Neither calls the store: a store that is down is no reason to restart a worker.
    """

    def __init__(
        self, host: str, port: int, is_alive: Callable[[], bool], is_ready: Callable[[], bool]
    ) -> None:
        self._host = host
        self._port = port
        self._answers = {b"/livez": is_alive, b"/readyz": is_ready}
        self._server: asyncio.Server | None = None
        self._callers = 0

    @property
    def port(self) -> int:
        """The port it listens on; with 0 the system chose one."""
        assert self._server is not None  # noqa: S101 - only while entered
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=8192)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._callers >= _MOST_CALLERS:
            writer.transport.abort()
            return
        self._callers += 1
        try:
            await self._answer_one(reader, writer)
        finally:
            self._callers -= 1

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path not in self._answers:
            return _response(b"404 Not Found", b"not found")
        if method not in (b"GET", b"HEAD"):
            return _response(b"405 Method Not Allowed", b"GET only")
        if self._answers[path]():
            return _response(b"200 OK", b"ok")
        return _response(b"503 Service Unavailable", b"not ready")


def _response(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (status, len(body)) + body
