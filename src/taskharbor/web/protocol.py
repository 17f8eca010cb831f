"""BoundedProtocol: uvicorn's HTTP protocol with deadlines and size limits.

connected, or a message has begun and is not complete ──► deadline runs ──► message complete: deadline off
                                                               └── passed, or the head too long ──► closed

Trailers after a chunked body are refused, and bytes that are not part of a body are counted.
connection_limits.py decides which connections are accepted and which are closed; fast_path.py has the two
shortcuts past ASGI that a connection offers to the application.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from taskharbor.errors import ConfigurationError
from taskharbor.web.connection_limits import ConnectionLimits
from taskharbor.web.fast_path import UVICORN_FAST_PATH
from taskharbor.web.reply import FAST_PATH

_MAX_UNFINISHED_HEAD = 64 * 1024
_MAX_BESIDE_BODY = 16 * 1024
"""Chunk sizes and extensions, beyond the size of the body itself."""
_MAX_AFTER_ANSWER = 1024 * 1024
"""How much is read and dropped of a request that was answered before it was complete."""
_MAX_AHEAD = 64
"""Pipelined requests: sent before the previous one was answered."""

# uvicorn logs a line per malformed request. We count them and log the number every few seconds.
_quiet = logging.getLogger("uvicorn.error.taskharbor")
_quiet.setLevel(logging.ERROR)


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Each server has a subclass with its limits; see `bounded`."""

    request_seconds = 10.0
    limits: ConnectionLimits
    address = ""
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _head_is_complete = False
    _is_arriving = False
    _is_refused = False
    _is_held = False
    _message = 0
    _beside_body = 0
    _body_bytes = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _quiet

    # ------------------------------------------------------------------ opening and closing

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if self.limits.enter(self, self.loop.time()) is not None:
            self._is_refused = True
            self._refuse(
                b"503 Service Unavailable\r\nretry-after: 1", b"too many connections; try again later\n"
            )
            return
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.leave(self)
        self._end_deadline()
        super().connection_lost(exc)

    def unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    def give_up(self) -> None:
        self.transport.abort()

    # ------------------------------------------------------------------ receiving a request

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
            self.limits.count("malformed")
            if self.cycle.response_started:
                self.transport.abort()
            else:
                self._refuse(b"400 Bad Request", b"the chunk headers are larger than the body\n")
        elif self.cycle.response_complete and self._beside_body + self._body_bytes > _MAX_AFTER_ANSWER:
            self.transport.abort()  # the answer is sent, and the rest would only be dropped

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MAX_AHEAD:
            raise ValueError("too many requests ahead of their answers")
        super().on_message_begin()
        self.scope[FAST_PATH] = UVICORN_FAST_PATH  # type: ignore[literal-required]
        self._head_bytes, self._head_is_complete, self._is_arriving = 0, False, True
        self._beside_body = self._body_bytes = 0
        self._message += 1
        if self.cycle is None or self.cycle.response_complete:
            self.limits.is_busy(self)  # it was idle and starts to send: its time starts again
            self.limits.waits(self, self.loop.time())

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_is_complete:
            # A trailer could only change what the headers have decided. Raising makes the parser stop, which
            # is answered with 400.
            raise ValueError("headers must come before the body")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_is_complete = True
        if not self.url.startswith(b"/"):
            # An absolute URL, as sent to a proxy: refused in the same way.
            raise ValueError("the request does not name a path")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_arriving = False
        self._end_deadline()
        if not self.cycle.response_complete:
            self.limits.is_busy(self)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self.limits.count("malformed")
        super().send_400_response(msg)

    # ------------------------------------------------------------------ sending an answer

    def on_response_complete(self) -> None:
        if self.pipeline and self.flow.write_paused:
            self._is_held = True  # a caller that does not read its answers gets no further one
            return
        is_last = not self.pipeline
        if is_last:
            self.cycle.body = bytearray()  # of a request that was answered before it was complete
        super().on_response_complete()
        if is_last:
            self.limits.waits(self, self.loop.time())

    def pause_writing(self) -> None:
        self.limits.stops_reading(self, self.loop.time())
        super().pause_writing()

    def resume_writing(self) -> None:
        self.limits.reads(self, self.loop.time())
        if self.cycle is not None and not self.cycle.response_complete and not self._is_arriving:
            self.limits.is_busy(self)
        super().resume_writing()
        if self._is_held:
            self._is_held = False
            self.on_response_complete()

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
        self.limits.count("slow")
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


def bounded(request_seconds: float, limits: ConnectionLimits) -> type[BoundedProtocol]:
    """The protocol with these limits, as class attributes: uvicorn creates the instances."""
    settings = {"request_seconds": request_seconds, "limits": limits}
    return type("BoundedProtocol", (BoundedProtocol,), settings)


# ------------------------------------------------------------------ the parts of uvicorn we rely on

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
    """Raises ConfigurationError for a uvicorn that lacks the private names this module relies on."""
    missing = {name for name in _METHODS if not callable(getattr(HttpToolsProtocol, name, None))}
    missing |= _OF_CONNECTION - _set_by(HttpToolsProtocol)
    missing |= _OF_REQUEST - _set_by(RequestResponseCycle)
    if missing:
        raise ConfigurationError(
            f"this server cannot run on uvicorn {uvicorn.__version__}, which has no {min(missing)}. "
            "Install a supported version: pip install 'taskharbor[server]'"
        )


def _set_by(kind: type) -> frozenset[str]:
    """The attributes that the constructor of a class sets."""
    return frozenset(getattr(kind.__init__, "__code__").co_names)  # type: ignore[misc]  # noqa: B009
