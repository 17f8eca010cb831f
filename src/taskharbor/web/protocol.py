"""BoundedProtocol: uvicorn's HTTP with an end to everything: a head, and a request, must arrive some time.

connected or message begins ──► deadline runs ──► message complete: deadline off
                                     └── passed, or the head too long ──► answered and closed
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from taskharbor.web.call import BOUNDED

_MAX_UNFINISHED_HEAD = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `request_seconds` is set on a class of its own per server; see `bounded`."""

    request_seconds = 10.0
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _head_is_complete = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._head_bytes
        super().data_received(data)
        if not self._head_is_complete:
            self._head_bytes = before + len(data)
            if self._head_bytes > _MAX_UNFINISHED_HEAD and not self.transport.is_closing():
                self._refuse(b"431 Request Header Fields Too Large", b"the headers are too large\n")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[BOUNDED] = True  # type: ignore[literal-required]
        self._head_bytes, self._head_is_complete = 0, False
        if self._deadline is None:
            self._start_deadline()

    def on_headers_complete(self) -> None:
        self._head_is_complete = True
        if not self.url.startswith(b"/"):
            # A whole URL, as for a proxy. Raising here makes the parser give up, which is answered with 400.
            raise ValueError("the request does not name a path")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
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


def bounded(request_seconds: float) -> type[BoundedProtocol]:
    """The protocol with this deadline; uvicorn makes the instances, so it travels on a class."""
    return type("BoundedProtocol", (BoundedProtocol,), {"request_seconds": request_seconds})
