"""Call: one request, with what its handler may ask of it."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope

from taskharbor.web.auth import HEAD, LOOPBACK, NOBODY, Principal, require_every_queue, require_queue
from taskharbor.web.direct import DIRECT, Direct
from taskharbor.web.problems import Problem
from taskharbor.web.reply import REQUEST_ID
from taskharbor.web.room import SMALL
from taskharbor.web.service import Service


class Call(HTTPConnection):
    """One request. `principal` is who calls, known before the handler starts."""

    def __init__(self, service: Service, scope: Scope, receive: Receive) -> None:
        super().__init__(scope)
        self.service = service
        self.principal: Principal = NOBODY
        self._receive = receive
        self._room_taken = 0
        self.audited: dict[str, Any] = {}
        """What the audit log should know besides who, what and how it ended."""

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def request_id(self) -> str:
        return str(self.scope[REQUEST_ID])

    def head(self, name: bytes) -> bytes | None:
        """One of the headers that we look at ourselves; see guard.py."""
        value: bytes | None = self.scope[HEAD].get(name)
        return value

    def parameter(self, name: str) -> str:
        """A part of the path."""
        return str(self.scope["path_params"][name])

    # ------------------------------------------------------------------ rights

    def require_queue(self, queue: str) -> None:
        require_queue(self.principal, queue)

    def require_every_queue(self) -> None:
        require_every_queue(self.principal)

    # ------------------------------------------------------------------ the body

    async def body(self, limit: int) -> bytes:
        """The whole body. A larger or slower one is refused, and its connection is given up."""
        self._refuse_foreign_body()
        announced = self._announced()
        if announced is not None and announced > limit:
            raise _too_large(limit)
        size = limit if announced is None else announced
        direct: Direct | None = self.scope.get(DIRECT)
        if direct is not None:
            body = direct.body(self._receive)
            if body is None:
                await self._take_room(size)
                return await self._read(limit)
            if len(body) > limit:
                raise _too_large(limit)
            return body
        await self._take_room(size)
        try:
            async with asyncio.timeout(self.service.config.request_seconds):
                return await self._read(limit)
        except TimeoutError:
            raise Problem(
                "timeout", "the body took too long to arrive; nothing was done", headers=_CLOSE
            ) from None

    def _announced(self) -> int | None:
        """The length of the body as the caller says it; Python reads no numbers of thousands of digits."""
        said = self.head(b"content-length")
        return None if said is None or not said.isdigit() else int(said[:_MOST_DIGITS])

    async def _take_room(self, size: int) -> None:
        """For a body that is not here yet. Of one in chunks nobody knows the size: as much as is allowed."""
        if size <= SMALL:
            return
        who, room = self.principal.name, self.service.room
        await room.take(
            who, size, self.service.config.request_seconds / 2, share=self.principal is not LOOPBACK
        )
        self._room_taken = size

    def done(self) -> None:
        """The call was answered: what it held is free again."""
        if self._room_taken:
            self.service.room.give_back(self.principal.name, self._room_taken)
            self._room_taken = 0

    async def optional_body(self, limit: int) -> bytes:
        """The same where a body may be left out: then it is empty."""
        if self.head(b"content-length") in (None, b"0") and self.head(b"transfer-encoding") is None:
            return b""
        return await self.body(limit)

    def _refuse_foreign_body(self) -> None:
        kind = self.head(b"content-type") or b""
        if kind != _JSON and kind.partition(b";")[0].strip().lower() != _JSON:
            raise Problem("unsupported-media-type", "send the body as application/json")
        if (self.head(b"content-encoding") or b"identity").lower() != b"identity":
            raise Problem("unsupported-media-type", "send the body as it is, without a content encoding")

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
        """Returns when the caller is gone; only after the body was read, or where there is none."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Disconnected(Exception):
    """The caller went away before the request was complete; there is nobody to answer."""


_JSON = b"application/json"
_MOST_DIGITS = 18
_CLOSE = {"Connection": "close"}


def _too_large(limit: int) -> Problem:
    return Problem(
        "payload-too-large",
        f"the body is over the limit of {limit} bytes; keep large data elsewhere and send a reference",
        headers=_CLOSE,
    )
