"""Reply: a complete answer; `deliver` sends any answer with the headers that all of them carry."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

JSON = "application/json"
REQUEST_ID = "taskharbor.request_id"
"""In the scope: the id of the request."""

FAST_PATH = "taskharbor.fast_path"
"""In the scope of a request on our own connections, which also enforce the time limit of a request."""

HAD_SLASH = "taskharbor.had_slash"
"""In the scope of a request whose path was sent with a slash at its end."""

HEAD = "taskharbor.head"
"""In the scope: the headers that this package uses, collected once by guard.py."""

LEAST_TO_GZIP = 1024
_MOST_TO_GZIP_AT_ONCE = 64 * 1024
"""A longer body is gzipped in a thread: the event loop would stop for milliseconds."""

_ON_ALL = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]
_NOTHING: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class FastPath:
    """Shortcuts past ASGI; see fast_path.py."""

    body: Callable[[Receive], bytes | None]
    """The whole body, if it has arrived."""

    write: Callable[[Send, bytes, bytes], bool]
    """Write a head, less its last headers, and a body. Returns False if that is not possible now."""


class Reply(Response):
    """A status, a body and a few headers. Built without Starlette's machinery: most answers are short."""

    def __init__(
        self,
        body: bytes,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str = JSON,
    ) -> None:
        self.status_code = status
        self.body = body
        self.extra_headers = headers or _NOTHING
        self.media_type: str = media_type
        self.background = None

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:  # type: ignore[override]
        headers = {
            "content-length": str(len(self.body)),
            "content-type": self.media_type,
            **self.extra_headers,
        }
        return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]

    def head(self, request_id: str) -> bytes | None:
        """Status line and headers as bytes, less the empty line; None if the headers need checking."""
        values = "".join(self.extra_headers.values())
        if not values.isascii() or not values.isprintable() or "Connection" in self.extra_headers:
            return None
        lines = "".join([f"{name}: {value}\r\n" for name, value in self.extra_headers.items()])
        return b"%bcontent-length: %d\r\n%bx-request-id: %b\r\n" % (
            _start(self.status_code, self.media_type),
            len(self.body),
            lines.encode(),
            request_id.encode(),
        )


@lru_cache(maxsize=64)
def _start(status: int, media_type: str) -> bytes:
    on_all = b"".join(b"%b: %b\r\n" % header for header in _ON_ALL)
    phrase = HTTPStatus(status).phrase
    return f"HTTP/1.1 {status} {phrase}\r\n".encode() + on_all + f"content-type: {media_type}\r\n".encode()


_encoder = msgspec.json.Encoder()


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(_encoder.encode(value), status, headers)


def accepts_gzip(scope: Scope) -> bool:
    """Whether the caller asked for gzip (RFC 9110, 12.5.3)."""
    accepted: bytes | None = scope[HEAD].get(b"accept-encoding")
    return accepted is not None and _names_gzip(accepted)


@lru_cache(maxsize=64)
def _names_gzip(accepted: bytes) -> bool:
    for part in accepted.lower().split(b","):
        name, _, weight = part.partition(b";")
        if name.strip() in (b"gzip", b"*"):
            return weight.replace(b" ", b"").rstrip(b".0") != b"q="
    return False


async def _gzipped(reply: Reply) -> Reply:
    body = bytes(reply.body)
    pack = partial(gzip.compress, body, compresslevel=1, mtime=0)
    packed = pack() if len(body) <= _MOST_TO_GZIP_AT_ONCE else await asyncio.to_thread(pack)
    headers = {**reply.extra_headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Reply(packed, reply.status_code, headers, reply.media_type)


async def deliver(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an answer with the headers that all carry; in one write where the connection allows it."""
    if type(response) is Reply and len(response.body) > LEAST_TO_GZIP and accepts_gzip(scope):
        response = await _gzipped(response)
    fast_path: FastPath | None = scope.get(FAST_PATH)
    if fast_path is not None and type(response) is Reply and scope["method"] != "HEAD":
        head = response.head(scope[REQUEST_ID])
        if head is not None and fast_path.write(send, head, bytes(response.body)):
            return
    await response(scope, receive, _with_headers(scope, send))


def _with_headers(scope: Scope, send: Send) -> Send:
    added = [*_ON_ALL, (b"x-request-id", scope[REQUEST_ID].encode())]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in message["headers"]}
            message["headers"] += [header for header in added if header[0] not in own]
        await send(message)

    return send_with_headers
