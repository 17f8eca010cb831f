"""FastPath: two shortcuts past ASGI on connections of our own server, so that short requests cost little.

    our connection   ──► a body that has arrived is taken whole; a complete answer is written in one piece
    any other server ──► receive and send, as ASGI defines them

A connection puts it into the scope of its requests. Where a shortcut does not apply (another server,
middleware in between, a body that is still arriving) the caller goes the usual way.
"""

from __future__ import annotations

from starlette.types import Receive, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from taskharbor.web.reply import FastPath

_MAX_JOINED = 16 * 1024


def _body_of(receive: Receive) -> bytes | None:
    """What `receive` would return, if the whole body has arrived."""
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
    """What `send` does with the two messages of an answer, on a connection that stays open."""
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


UVICORN_FAST_PATH = FastPath(_body_of, _write)


class _ServerHeaders:
    """uvicorn's own headers. It makes a new list each second, for the date: that list is formatted once."""

    def __init__(self) -> None:
        self._seen: list[tuple[bytes, bytes]] | None = None
        self._written = b""

    def written(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        if headers is not self._seen:
            self._seen, self._written = headers, b"".join(b"%b: %b\r\n" % header for header in headers)
        return self._written


_server_headers = _ServerHeaders()
