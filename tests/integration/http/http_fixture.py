"""For tests of the HTTP driver: a proxy that loses requests or replies, and servers with fixed answers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from taskharbor.drivers.contract import Driver
from taskharbor.model.job import JobRecord

SLOW = 40.0  # how long to wait for something that should happen soon, on a busy machine


class Proxy:
    """Forwards what arrives to a server, request by request.

    `lose` holds what happens to the next requests that name a verb: "reply", it is handed on and answered,
    and the connection is cut instead of answering; "request", it is cut before it is handed on.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        assert parts.hostname
        assert parts.port
        self._target = (parts.hostname, parts.port)
        self._path = parts.path
        self.lose: list[tuple[str, str]] = []
        self.seen: list[str] = []
        """The verbs that came here, in their order."""
        self.others: list[str] = []
        """URLs of other servers that the next requests go to, one each."""
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server
        port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}{self._path}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server = None
        try:
            from_server, to_server = await asyncio.open_connection(*self._target)
            while await self._one(reader, writer, from_server, to_server):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()
            if to_server is not None:
                to_server.transport.abort()

    async def _one(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> bool:
        request = await _message(reader)
        verb = request.split(b" ", 2)[1].rpartition(b"/")[2].decode()
        self.seen.append(verb)
        fate = self.fate_of(verb, request)
        if fate == "request":
            return False
        if self.others:
            reply = await self._elsewhere(self.others.pop(0), request)
        else:
            to_server.write(request)
            reply = await _message(from_server)
        if fate:
            return False
        writer.write(reply)
        return True

    def fate_of(self, verb: str, request: bytes) -> str:
        """Which part of this exchange is lost: "request", "reply", or nothing."""
        fate = next((fate for fate in self.lose if fate[0] == verb), None)
        if fate is None:
            return ""
        self.lose.remove(fate)
        return fate[1]

    async def _elsewhere(self, url: str, request: bytes) -> bytes:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(request)
        try:
            return await _message(reader)
        finally:
            writer.close()
            await writer.wait_closed()


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return head + await reader.readexactly(int(length or b"0"))


@asynccontextmanager
async def proxy_to(url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


@asynccontextmanager
async def server_that_says(answer: bytes | None, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The URL of something that gives this answer to every request, and hangs up; None: it never answers."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        scheme = "http" if tls is None else "https"
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.wait_for(server.wait_closed(), SLOW)


def http_answer(status: str, body: bytes, content_type: str = "application/json", *more: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *more]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def record_of(driver: Driver, job_id: str) -> JobRecord:
    [record] = await driver.get([job_id])
    assert record is not None
    return record
