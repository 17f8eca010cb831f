"""Request: one HTTP request, with what its handler may ask of it."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope

from taskharbor.web.audit_book import SettingChange
from taskharbor.web.auth import LOOPBACK, NOBODY, Principal, require_every_queue, require_queue
from taskharbor.web.body_limits import SMALL
from taskharbor.web.problems import Problem
from taskharbor.web.reply import FAST_PATH, HEAD, REQUEST_ID, FastPath, accepts_gzip
from taskharbor.web.service import Service


class Request(HTTPConnection):
    """One request. `principal` is the caller, known before the handler starts."""

    def __init__(self, service: Service, scope: Scope, receive: Receive) -> None:
        super().__init__(scope)
        self.service = service
        self.principal: Principal = NOBODY
        self.query: Any = None
        """The parsed query string; `Operation.query` is its type."""

        self._receive = receive
        self._memory_held = 0
        self.audited: dict[str, Any] = {}
        """What the audit log shows besides caller, operation and status."""
        self.is_preview = False
        """Whether it only asks what a change would do: then it is no change in the book of changes."""
        self.change: SettingChange | None = None
        """What the book of changes shows of a setting: before and after."""

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def request_id(self) -> str:
        return str(self.scope[REQUEST_ID])

    def head(self, name: bytes) -> bytes | None:
        """One of the headers that guard.py has picked out."""
        value: bytes | None = self.scope[HEAD].get(name)
        return value

    @property
    def accepts_gzip(self) -> bool:
        return accepts_gzip(self.scope)

    def parameter(self, name: str) -> str:
        """A path parameter."""
        return str(self.scope["path_params"][name])

    # ------------------------------------------------------------------ rights

    def require_queue(self, queue: str) -> None:
        require_queue(self.principal, queue)

    def require_every_queue(self) -> None:
        require_every_queue(self.principal)

    # ------------------------------------------------------------------ the body

    async def body(self, limit: int) -> bytes:
        """The whole body. If it is larger or slower than allowed, the connection is closed."""
        self._refuse_foreign_body()
        announced = self._announced()
        if announced is not None and announced > limit:
            raise _too_large(limit)
        size = limit if announced is None else announced
        fast_path: FastPath | None = self.scope.get(FAST_PATH)
        if fast_path is not None:
            body = fast_path.body(self._receive)
            if body is None:
                await self._reserve_memory(size)
                return await self._read(limit)
            if len(body) > limit:
                raise _too_large(limit)
            return body
        await self._reserve_memory(size)
        try:
            async with asyncio.timeout(self.service.config.request_seconds):
                return await self._read(limit)
        except TimeoutError:
            raise Problem(
                "timeout", "the body took too long to arrive; nothing was done", headers=_CLOSE
            ) from None

    def _announced(self) -> int | None:
        """The Content-Length. Cut to 18 digits: Python refuses to parse numbers of thousands of digits."""
        text = self.head(b"content-length")
        return None if text is None or not text.isdigit() else int(text[:_MOST_DIGITS])

    async def _reserve_memory(self, size: int) -> None:
        """For a body that has not arrived yet. A chunked body reserves the most it may have."""
        if size <= SMALL:
            return
        who, memory = self.principal.name, self.service.body_memory
        await memory.take(
            who, size, self.service.config.request_seconds / 2, share=self.principal is not LOOPBACK
        )
        self._memory_held = size

    def done(self) -> None:
        """The request was answered: release its memory."""
        if self._memory_held:
            self.service.body_memory.release(self.principal.name, self._memory_held)
            self._memory_held = 0

    async def optional_body(self, limit: int) -> bytes:
        """The body, or b"" if the request has none."""
        if self.head(b"content-length") in (None, b"0") and self.head(b"transfer-encoding") is None:
            return b""
        return await self.body(limit)

    def _refuse_foreign_body(self) -> None:
        kind = self.head(b"content-type") or b""
        if kind != _JSON and kind.partition(b";")[0].strip().lower() != _JSON:
            raise Problem("unsupported-media-type", "send the body as application/json")
        if (self.head(b"content-encoding") or b"identity").lower() != b"identity":
            raise Problem("unsupported-media-type", "send the body without a content encoding")

    async def _read(self, limit: int) -> bytes:
        message = await self._next()
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False) and len(body) <= limit:
            return body
        parts, size = [body], len(body)
        while message.get("more_body", False) and size <= limit:
            message = await self._next()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
        if size > limit:
            raise _too_large(limit)
        return b"".join(parts)

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        return message

    async def disconnected(self) -> None:
        """Returns when the caller disconnects. Call it only after the body was read, or if there is none."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Disconnected(Exception):
    """The caller disconnected before the request was complete."""


_JSON = b"application/json"
_MOST_DIGITS = 18
_CLOSE = {"Connection": "close"}


def _too_large(limit: int) -> Problem:
    return Problem(
        "payload-too-large",
        f"the body exceeds the limit of {limit} bytes; keep large data elsewhere and send a reference",
        headers=_CLOSE,
    )
