"""BoundedProtocol: uvicorn's HTTP with an end to everything: a head, and a request, must arrive some time.

connected, or a message has begun and is not complete ──► deadline runs ──► message complete: deadline off
                                                               └── passed, or the head too long ──► closed

It also offers two shortcuts past ASGI to the application right above it; see direct.py.
"""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from taskharbor.web.direct import DIRECT, Direct

_MAX_UNFINISHED_HEAD = 64 * 1024
_MAX_JOINED = 16 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Its limits are set on a class of its own per server; see `bounded`."""

    request_seconds = 10.0
    max_connections = 1000
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _head_is_complete = False
    _is_arriving = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(b"503 Service Unavailable\r\nretry-after: 1", b"there are too many connections\n")
            return
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._head_bytes
        super().data_received(data)
        if not self._is_arriving:
            return
        if self._deadline is None:
            self._start_deadline()
        if not self._head_is_complete:
            self._head_bytes = before + len(data)
            if self._head_bytes > _MAX_UNFINISHED_HEAD and not self.transport.is_closing():
                self._refuse(b"431 Request Header Fields Too Large", b"the headers are too large\n")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[DIRECT] = _DIRECT  # type: ignore[literal-required]
        self._head_bytes, self._head_is_complete, self._is_arriving = 0, False, True

    def on_headers_complete(self) -> None:
        self._head_is_complete = True
        if not self.url.startswith(b"/"):
            # A whole URL, as for a proxy. Raising here makes the parser give up, which is answered with 400.
            raise ValueError("the request does not name a path")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_arriving = False
        self._end_deadline()
        super().on_message_complete()

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(self.request_seconds, self._too_slow)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self._head_is_complete or self._head_bytes == 0:
            self.transport.close()
        else:
            self._refuse(b"408 Request Timeout", b"the request took too long to arrive\n")

    def _refuse(self, status: bytes, text: bytes) -> None:
        head = (
            b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head % (status, len(text)) + text)
        self.transport.close()


def bounded(request_seconds: float, max_connections: int) -> type[BoundedProtocol]:
    """The protocol with these limits; uvicorn makes the instances, so they travel on a class."""
    limits = {"request_seconds": request_seconds, "max_connections": max_connections}
    return type("BoundedProtocol", (BoundedProtocol,), limits)


# ------------------------------------------------------------------ shortcuts


def _body_of(receive: Receive) -> bytes | None:
    """What `receive` would give, if it would give all of it at once."""
    cycle = getattr(receive, "__self__", None)
    if type(cycle) is not RequestResponseCycle or cycle.more_body or cycle.waiting_for_100_continue:
        return None
    if cycle.disconnected or cycle.response_complete:
        return None
    body, cycle.body = bytes(cycle.body), bytearray()
    cycle.message_event.clear()
    cycle.flow.resume_reading()
    return body


def _write(send: Send, head: bytes, body: bytes) -> bool:
    """What `send` would do with the two messages of an answer, on a connection that stays open after it."""
    cycle = getattr(send, "__self__", None)
    if type(cycle) is not RequestResponseCycle or cycle.response_started or cycle.access_log:
        return False
    if cycle.disconnected or not cycle.keep_alive or cycle.flow.write_paused:
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    head = b"%b%b\r\n" % (head, _server_headers.written(cycle.default_headers))
    if len(body) > _MAX_JOINED:
        cycle.transport.write(head)
        cycle.transport.write(body)
    else:
        cycle.transport.write(head + body)
    cycle.message_event.set()
    cycle.on_response()
    return True


_DIRECT = Direct(_body_of, _write)


class _ServerHeaders:
    """uvicorn's own headers: a new list every second, for the date, so it is written out once a second."""

    def __init__(self) -> None:
        self._seen: list[tuple[bytes, bytes]] | None = None
        self._written = b""

    def written(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        if headers is not self._seen:
            self._seen, self._written = headers, b"".join(b"%b: %b\r\n" % header for header in headers)
        return self._written


_server_headers = _ServerHeaders()
