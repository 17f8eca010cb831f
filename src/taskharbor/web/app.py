"""create_app(harbor): the HTTP API as an ASGI application, to serve alone or to mount anywhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from taskharbor.errors import DriverUnavailable
from taskharbor.harbor import Harbor
from taskharbor.scheduler.scheduler import Scheduler
from taskharbor.web.api import dlq, enqueue, events, health, jobs, queues, schedules, workers
from taskharbor.web.auth import Authenticate
from taskharbor.web.call import Call
from taskharbor.web.config import ServerConfig
from taskharbor.web.driver_routes import DriverVerbs
from taskharbor.web.endpoint import Endpoint, Operation, endpoints_of
from taskharbor.web.guard import Guard
from taskharbor.web.openapi import openapi_operation
from taskharbor.web.problems import KINDS, Problem, problem_response
from taskharbor.web.reply import REQUEST_ID, deliver
from taskharbor.web.service import Service

_log = logging.getLogger("taskharbor.server")
_FAREWELL_SECONDS = 2.0
_TRY_AGAIN_SECONDS = 5.0
_NOT_SPOKEN_HERE = 1003

OPERATIONS: list[Operation] = [
    *enqueue.OPERATIONS,
    *jobs.OPERATIONS,
    *dlq.OPERATIONS,
    *queues.OPERATIONS,
    *workers.OPERATIONS,
    *schedules.OPERATIONS,
    *events.OPERATIONS,
    *health.OPERATIONS,
]


def create_app(
    harbor: Harbor,
    config: ServerConfig | None = None,
    *,
    authenticate: Authenticate | None = None,
    local_callers_are_admin: bool = False,
    prefix: str | None = None,
) -> App:
    """The API of a harbor. Mount it in any ASGI application, at any path.

    The store is opened at the first request, or at the start where the lifespan is run: mounted
    applications do not get theirs run, so `async with app.running():` in your own does the same.

    Args:
        harbor: What is served.
        config: Limits, and the token file.
        authenticate: Lets a host application say who calls; without it, tokens decide.
        local_callers_are_admin: Without either, serve callers whose address is of this machine, as admin.
            Only where the server below tells true addresses: behind a proxy on this machine, or a server
            that believes forwarded addresses, that is everybody.
        prefix: The path under which callers find it, for hosts that do not say (Litestar); links need it.

    Raises:
        ConfigurationError: nothing says who may call.
    """
    service = Service(
        harbor, config or ServerConfig(), authenticate, local_callers_are_admin=local_callers_are_admin
    )
    if service.config.metrics:
        from taskharbor.web.api.metrics import ServerMetrics

        service.metrics = ServerMetrics(harbor, service.connections)
    return App(service, prefix)


class App:
    """The ASGI application. `service` is what its routes share."""

    def __init__(self, service: Service, prefix: str | None = None) -> None:
        self.service = service
        self._prefix = None if prefix is None else prefix.rstrip("/")
        self._guard = Guard(service)
        endpoints = _endpoints(service)
        self._at_path = {path: endpoint for path, endpoint in endpoints.items() if "{" not in path}
        """Where most requests go: one look, before the router tries its patterns in turn."""
        self._router = Router(
            [Route(path, endpoint=endpoint) for path, endpoint in endpoints.items() if "{" in path],
            default=self._nothing_there,
            redirect_slashes=False,
            lifespan=lambda _app: self.running(),
        )

    def stop(self) -> None:
        """End event streams and long waits, so that a server can stop in good order."""
        self.service.stop()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the store, run the scheduler beside if so configured; close both in the end."""
        service = self.service
        try:
            await service.driver()
        except DriverUnavailable as error:
            service.harbor.driver.outage.failed("open; requests get 503", error)
        keeping_time = asyncio.ensure_future(_keep_time(service)) if service.config.scheduler else None
        measuring = nullcontext() if service.metrics is None else service.metrics.measuring()
        try:
            async with measuring:
                yield
        finally:
            service.stop()
            if keeping_time is not None:
                keeping_time.cancel()
                await asyncio.wait((keeping_time,), timeout=_FAREWELL_SECONDS)
            if service.afterwards:
                await asyncio.wait(tuple(service.afterwards), timeout=_FAREWELL_SECONDS)
            service.audit.close()
            await service.harbor.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _NOT_SPOKEN_HERE})
            return
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        problem = self._guard.look_at(scope)
        if problem is not None:
            call = Call(self.service, scope, receive)
            self.service.audit.note(call, "guard", KINDS[problem.kind][0], is_change=False)
            await _answer(problem, scope, receive, send)
            return
        scope, path = self._placed(scope)
        await (self._at_path.get(path) or self._router)(scope, receive, send)

    def _placed(self, scope: Scope) -> tuple[Scope, str]:
        """The scope with its paths as ASGI wants them, and the path below where we are mounted.

        Starlette leaves its own path before ours and says so in `root_path`. Litestar takes its own away
        without a word, sometimes with the slash before ours, and puts a slash behind.
        """
        root, path = scope.get("root_path", ""), scope["path"]
        if root and (path == root or path.startswith(root + "/")):
            path = path[len(root) :]
        if not path.startswith("/"):
            path = "/" + path
        if path.endswith("/") and path != "/":
            path = path[:-1]
        root = root if self._prefix is None else self._prefix
        if scope["path"] != root + path or scope.get("root_path", "") != root:
            scope = {**scope, "root_path": root, "path": root + path}
        return scope, path

    async def _nothing_there(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _answer(Problem("not-found", "there is nothing at this path"), scope, receive, send)


async def _answer(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    reply = problem_response(problem, instance=scope["path"], request_id=scope[REQUEST_ID])
    await deliver(reply, scope, receive, send)


async def _keep_time(service: Service) -> None:
    """The scheduler beside the server, on a handle of its own, tried again while the store is away."""
    while not service.stopping.is_set():
        try:
            await service.harbor.schedules.astore()
            async with service.harbor.driver.another() as driver:
                await Scheduler(driver, name="server", events=service.harbor.events).arun()
        except DriverUnavailable as error:
            service.harbor.driver.outage.failed("open, for the scheduler", error)
        except Exception:  # noqa: BLE001 - logged as a whole; requests are served all the same
            _log.exception("the scheduler beside the server has ended; it starts again")
        await service.pause(_TRY_AGAIN_SECONDS)


def _endpoints(service: Service) -> dict[str, Endpoint]:
    operations = OPERATIONS if service.metrics is None else [*OPERATIONS, service.metrics.operation()]
    operations = [*operations, *DriverVerbs(service).operations()]
    document = openapi_operation(operations, accepts_now=service.config.accepts_now)
    return endpoints_of(service, [*operations, document])
