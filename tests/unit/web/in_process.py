"""A server in this process, called without a socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from taskharbor import Harbor
from taskharbor.web.app import App, create_app
from taskharbor.web.config import ServerConfig


class Server:
    """An application in an event loop of its own, and how to call it."""

    def __init__(self, url: str = "memory://", **config: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.app: App = self.loop.run_until_complete(
            self._make(url, ServerConfig(rate_per_second=0, max_wait_seconds=0.01, **config))
        )

    async def _make(self, url: str, config: ServerConfig) -> App:
        return create_app(Harbor(url), config, local_callers_are_admin=True)

    def close(self) -> None:
        self.loop.run_until_complete(self._stop())
        self.loop.close()

    async def _stop(self) -> None:
        async with self.app.running():
            pass

    def post(self, verb: str, body: bytes, *headers: tuple[bytes, bytes]) -> tuple[int, bytes]:
        """The status and the body of one call of a driver's verb."""
        sent = self.loop.run_until_complete(answered(self.app, verb, body, *headers))
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


async def answered(app: App, verb: str, body: bytes, *headers: tuple[bytes, bytes]) -> list[Any]:
    """What the application sends for one call of a driver's verb: the head, then the body."""
    sent: list[Any] = []
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": body}]

    async def receive() -> dict[str, Any]:
        if not messages:  # the caller stays: who is gone has the jobs of a claim taken back
            await asyncio.Event().wait()
        return messages.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/api/driver/{verb}",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"host", b"localhost"), *headers],
        "client": ("127.0.0.1", 1),
    }
    await app(scope, receive, send)
    return sent


@contextmanager
def in_process(url: str = "memory://", **config: Any) -> Iterator[Server]:
    """A server, and a quiet audit log while it is there."""
    audit = logging.getLogger("taskharbor.audit")
    before = audit.level
    audit.setLevel(logging.CRITICAL)
    server = Server(url, **config)
    try:
        yield server
    finally:
        server.close()
        audit.setLevel(before)
