"""Reply: an answer that is complete, and how answers leave: with the headers that all of them carry."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from taskharbor.web.direct import DIRECT, Direct

JSON = "application/json"
REQUEST_ID = "taskharbor.request_id"
"""In the scope: the id of the request."""

_ON_ALL = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]
_NOTHING: dict[str, str] = {}


class Reply(Response):
    """A status, a body and a few headers, made without a detour: most calls are short."""

    def __init__(
        self,
        body: bytes,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str = JSON,
    ) -> None:
        self.status_code = status
        self.body = body
        self.said = headers or _NOTHING
        self.media_type: str = media_type
        self.background = None

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:  # type: ignore[override]
        said = {"content-length": str(len(self.body)), "content-type": self.media_type, **self.said}
        return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in said.items()]

    def head(self, request_id: str) -> bytes | None:
        """The head as it goes over the wire, less the empty line; None for one that needs a closer look."""
        values = "".join(self.said.values())
        if not values.isascii() or not values.isprintable() or "Connection" in self.said:
            return None
        said = "".join([f"{name}: {value}\r\n" for name, value in self.said.items()])
        return b"%bcontent-length: %d\r\n%bx-request-id: %b\r\n" % (
            _start(self.status_code, self.media_type),
            len(self.body),
            said.encode(),
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


async def deliver(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an answer with the headers that all of them carry; a complete one in one piece where it can be."""
    direct: Direct | None = scope.get(DIRECT)
    if direct is not None and type(response) is Reply and scope["method"] != "HEAD":
        head = response.head(scope[REQUEST_ID])
        if head is not None and direct.write(send, head, bytes(response.body)):
            return
    await response(scope, receive, _with_headers(scope, send))


def _with_headers(scope: Scope, send: Send) -> Send:
    added = [*_ON_ALL, (b"x-request-id", scope[REQUEST_ID].encode())]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *added]
        await send(message)

    return send_with_headers
