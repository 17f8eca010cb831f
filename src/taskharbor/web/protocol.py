"""BoundedProtocol: uvicorn's HTTP with an end to everything: heads, requests, answers, requests in a row.

connected, or a message has begun and is not complete ──► deadline runs ──► message complete: deadline off
                                                               └── passed, or the head too long ──► closed

What comes after the chunks of a body is refused, and whatever is no part of a body is counted. Who has a
place, and who goes when there is none, is decided in connections.py.

It also offers two shortcuts past ASGI to the application right above it; see direct.py.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import uvicorn
from starlette.types import Receive, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from taskharbor.errors import ConfigurationError
from taskharbor.web.connections import Connections
from taskharbor.web.direct import DIRECT, Direct

_MAX_UNFINISHED_HEAD = 64 * 1024
_MAX_BESIDE_BODY = 16 * 1024
"""Sizes of chunks and their extensions, over what the body itself has."""
_MAX_AFTER_ANSWER = 1024 * 1024
"""What is read, to be thrown away, of a request that was answered before it was complete."""
_MAX_AHEAD = 64
"""Requests that were sent before the one in front of them was answered."""
_MAX_JOINED = 16 * 1024

# uvicorn writes a line for each request that is none. We count them, and tell the number now and then.
_quiet = logging.getLogger("uvicorn.error.taskharbor")
_quiet.setLevel(logging.ERROR)


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Its limits are set on a class of its own per server; see `bounded`."""

    request_seconds = 10.0
    crowd: Connections
    address = ""
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _head_is_complete = False
    _is_arriving = False
    _is_refused = False
    _message = 0
    _beside_body = 0
    _body_bytes = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _quiet

    # ------------------------------------------------------------------ coming and going

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if self.crowd.enter(self, self.loop.time()) is not None:
            self._is_refused = True
            self._refuse(b"503 Service Unavailable\r\nretry-after: 1", b"there are too many connections\n")
            return
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.leave(self)
        self._end_deadline()
        super().connection_lost(exc)

    def unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    def give_up(self) -> None:
        self.transport.abort()

    # ------------------------------------------------------------------ a request as it comes

    def data_received(self, data: bytes) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        before, body_before = self._head_bytes, self._body_bytes
        message_before = self._message if self._is_arriving and self._head_is_complete else None
        super().data_received(data)
        if self.transport.is_closing():
            self._end_deadline()
            return
        if not self._is_arriving:
            return
        if self._deadline is None:
            self._start_deadline()
        if not self._head_is_complete:
            self._head_bytes = before + len(data)
            if self._head_bytes > _MAX_UNFINISHED_HEAD:
                self._refuse(b"431 Request Header Fields Too Large", b"the headers are too large\n")
        elif message_before == self._message:
            self._count_body(len(data), self._body_bytes - body_before)

    def _count_body(self, arrived: int, of_body: int) -> None:
        self._beside_body += arrived - of_body
        if self._beside_body > _MAX_BESIDE_BODY + self._body_bytes:
            self.crowd.count("malformed")
            if self.cycle.response_started:
                self.transport.abort()
            else:
                self._refuse(b"400 Bad Request", b"there is more around the body than in it\n")
        elif self.cycle.response_complete and self._beside_body + self._body_bytes > _MAX_AFTER_ANSWER:
            self.transport.abort()  # the answer is out, and the rest would only be thrown away

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MAX_AHEAD:
            raise ValueError("too many requests ahead of their answers")
        super().on_message_begin()
        self.scope[DIRECT] = _DIRECT  # type: ignore[literal-required]
        self._head_bytes, self._head_is_complete, self._is_arriving = 0, False, True
        self._beside_body = self._body_bytes = 0
        self._message += 1
        if self.cycle is None or self.cycle.response_complete:
            self.crowd.our_turn(self)  # it was quiet, and begins to send: its time starts again
            self.crowd.their_turn(self, self.loop.time())

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_is_complete:
            # After a body it could only change what was decided by the headers before it. Raising here makes
            # the parser give up, which is answered with 400.
            raise ValueError("headers must stand before the body")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_is_complete = True
        if not self.url.startswith(b"/"):
            # A whole URL, as for a proxy: refused in the same way.
            raise ValueError("the request does not name a path")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_arriving = False
        self._end_deadline()
        if not self.cycle.response_complete:
            self.crowd.our_turn(self)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self.crowd.count("malformed")
        super().send_400_response(msg)

    # ------------------------------------------------------------------ an answer as it goes

    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        if is_last:
            self.cycle.body = bytearray()  # of a request that was answered before it was complete
        super().on_response_complete()
        if is_last:
            self.crowd.their_turn(self, self.loop.time())

    def pause_writing(self) -> None:
        self.crowd.stops_reading(self, self.loop.time())
        super().pause_writing()

    def resume_writing(self) -> None:
        self.crowd.reads(self, self.loop.time())
        if self.cycle is not None and not self.cycle.response_complete and not self._is_arriving:
            self.crowd.our_turn(self)
        super().resume_writing()

    # ------------------------------------------------------------------ deadlines

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
        self.crowd.count("slow")
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


def bounded(request_seconds: float, crowd: Connections) -> type[BoundedProtocol]:
    """The protocol with these limits; uvicorn makes the instances, so they travel on a class."""
    limits = {"request_seconds": request_seconds, "crowd": crowd}
    return type("BoundedProtocol", (BoundedProtocol,), limits)


# ------------------------------------------------------------------ what of uvicorn we build on

_OF_CONNECTION = frozenset(
    {
        "loop",
        "logger",
        "parser",
        "connections",
        "transport",
        "flow",
        "client",
        "pipeline",
        "scope",
        "headers",
        "cycle",
    }
)
_OF_REQUEST = frozenset(
    {
        "transport",
        "flow",
        "access_log",
        "default_headers",
        "message_event",
        "on_response",
        "disconnected",
        "keep_alive",
        "waiting_for_100_continue",
        "body",
        "more_body",
        "response_started",
        "response_complete",
    }
)
_METHODS = (
    "connection_made",
    "connection_lost",
    "data_received",
    "on_message_begin",
    "on_header",
    "on_headers_complete",
    "on_body",
    "on_message_complete",
    "on_response_complete",
    "pause_writing",
    "resume_writing",
    "send_400_response",
)


def check_uvicorn() -> None:
    """Raises ConfigurationError for a uvicorn without the inner names that this module builds on."""
    missing = {name for name in _METHODS if not callable(getattr(HttpToolsProtocol, name, None))}
    missing |= _OF_CONNECTION - _set_by(HttpToolsProtocol)
    missing |= _OF_REQUEST - _set_by(RequestResponseCycle)
    if missing:
        raise ConfigurationError(
            f"uvicorn {uvicorn.__version__} is not one that this server can use: it lacks {min(missing)}. "
            "Install one that fits: pip install 'taskharbor[server]'"
        )


def _set_by(kind: type) -> frozenset[str]:
    """The attributes that the constructor of a class sets."""
    return frozenset(getattr(kind.__init__, "__code__").co_names)  # type: ignore[misc]  # noqa: B009


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
