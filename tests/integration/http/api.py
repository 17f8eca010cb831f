"""A server in the test's own process: requests go straight into the application, or over a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2

from taskharbor.drivers.messages import Claim
from taskharbor.drivers.wire import Role
from taskharbor.harbor import Harbor
from taskharbor.model.clock import Clock, SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord
from taskharbor.model.settlement import Fail
from taskharbor.web.app import App, create_app
from taskharbor.web.config import ServerConfig
from taskharbor.web.server import GracefulServer, bind
from taskharbor.web.tokens import TokenFile, new_token

GENEROUS_SECONDS = 30.0


class Api:
    """One application, and callers of it."""

    def __init__(self, harbor: Harbor | None = None, **config: Any) -> None:
        self.harbor = harbor or Harbor("memory://")
        self.app: App = create_app(self.harbor, ServerConfig(**config), local_callers_are_admin=True)
        # Each request looks at the store itself, so that a test sees what it has just done.
        self.app.service.board.least_seconds = self.app.service.board.share = 0.0
        self._client = self.caller()

    def caller(self, address: str = "127.0.0.1") -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(app=self.app, client=(address, 4711))
        return httpx2.AsyncClient(transport=transport, base_url="http://localhost")

    async def __call__(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, **options: Any
    ) -> httpx2.Response:
        headers = dict(options.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            options["json"] = body
        return await self._client.request(method, path, headers=headers, **options)

    async def put(self, body: dict[str, Any]) -> str:
        """Enqueue a job and answer its id."""
        answer = await self("POST", "/api/jobs", body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def claim(self, queue: str = "default") -> JobRecord:
        """Take the next job, as a worker would."""
        driver = await self.harbor.client.adriver()
        [job] = (
            await driver.reserve(
                Claim(queues=(queue,), worker_id="w-1", lease_for=timedelta(minutes=5), lanes=("any",))
            )
        ).jobs
        return job

    async def kill(self, queue: str = "default", reason: str = "no luck") -> str:
        """Make a dead letter of the next job."""
        job = await self.claim(queue)
        driver = await self.harbor.client.adriver()
        await driver.settle([Fail(job.lease, reason)])
        return job.id

    async def aclose(self) -> None:
        await self._client.aclose()
        await self.harbor.aclose()


def token_file(folder: Path, clock: Clock | None = None) -> TokenFile:
    return TokenFile(folder / "tokens.json", clock or SystemClock())


def make_token(file: TokenFile, role: Role, queues: tuple[str, ...] | None = None, **options: Any) -> str:
    text, kept = new_token(Entropy(), role, SystemClock().now(), queues=queues, **options)
    file.add(kept)
    return text


# ------------------------------------------------------------------ over a real socket


@contextmanager
def served(app: App, grace_seconds: float = 10.0) -> Iterator[int]:
    """The port of a real server in a thread, with everything that `taskharbor server` has."""
    listener = bind("127.0.0.1", 0)
    listener.listen()  # callers may come before the server is up, and wait
    server = GracefulServer(app, listener, grace_seconds)
    loops: list[asyncio.AbstractEventLoop] = []
    is_up = threading.Event()

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        is_up.set()
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert is_up.wait(GENEROUS_SECONDS)
    try:
        yield int(listener.getsockname()[1])
    finally:
        loops[0].call_soon_threadsafe(server.stop)
        thread.join(GENEROUS_SECONDS)
        listener.close()
    assert not thread.is_alive(), "the server did not stop"


def talk(port: int, data: bytes, *, until_closed: bool = True) -> bytes:
    """Send bytes and read what comes, until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=GENEROUS_SECONDS) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(65536), b"")) if until_closed else connection.recv(65536)


# ------------------------------------------------------------------ event streams


class Stream:
    """An open event stream, straight from the application."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.is_over = False
        self._events: list[tuple[str, str, Any]] = []
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.leave = asyncio.Event()

    async def send(self, message: Any) -> None:
        await self._sent.put(message)

    async def receive(self) -> Any:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def next(self, *kinds: str) -> tuple[str, str, Any]:
        """(id, kind, data) of the next event, or of the next one of these kinds."""
        async with asyncio.timeout(GENEROUS_SECONDS):
            while True:
                while not self._events:
                    await self._take()
                found = self._events.pop(0)
                if not kinds or found[1] in kinds:
                    return found

    async def ended(self) -> None:
        async with asyncio.timeout(GENEROUS_SECONDS):
            while not self.is_over:
                await self._take()

    async def opened(self) -> None:
        async with asyncio.timeout(GENEROUS_SECONDS):
            while self.status is None:
                await self._take()

    async def _take(self) -> None:
        assert not self.is_over, f"the stream has ended: {self.body!r}"
        message = await self._sent.get()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            return
        self.body += message.get("body", b"")
        self.is_over = not message.get("more_body", False)
        for block in message.get("body", b"").decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
            if "event" in lines:
                self._events.append((lines.get("id", ""), lines["event"], json.loads(lines["data"])))


@asynccontextmanager
async def stream(api: Api, query: str = "", headers: dict[str, str] | None = None) -> AsyncIterator[Stream]:
    found = Stream()
    fields = {"host": "localhost", **(headers or {})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "path": "/api/events",
        "raw_path": b"/api/events",
        "root_path": "",
        "scheme": "http",
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in fields.items()],
        "client": ("127.0.0.1", 4711),
        "server": ("127.0.0.1", 8484),
    }
    task = asyncio.ensure_future(api.app(scope, found.receive, found.send))
    try:
        await found.opened()
        yield found
    finally:
        found.leave.set()
        async with asyncio.timeout(GENEROUS_SECONDS):
            await task
