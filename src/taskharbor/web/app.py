"""create_app(harbor): the HTTP API as an ASGI application, to serve alone or to mount in another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import anyio
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from taskharbor.errors import DriverUnavailable
from taskharbor.harbor import Harbor
from taskharbor.scheduler.scheduler import Scheduler
from taskharbor.web.api import (
    audit,
    board,
    bulk,
    dlq,
    enqueue,
    events,
    failures,
    health,
    jobs,
    queues,
    schedules,
    series,
    session,
    tokens,
    ui,
    workers,
    workflow_enqueue,
    workflows,
)
from taskharbor.web.auth import LOOPBACK, Authenticate
from taskharbor.web.config import ServerConfig
from taskharbor.web.driver_routes import DriverVerbs
from taskharbor.web.endpoint import Endpoint, Operation, endpoints_of
from taskharbor.web.guard import Guard
from taskharbor.web.openapi import openapi_operation
from taskharbor.web.pages import Pages
from taskharbor.web.problems import KINDS, Problem, problem_response
from taskharbor.web.reply import HAD_SLASH, REQUEST_ID, deliver
from taskharbor.web.request import Request
from taskharbor.web.service import Service

_log = logging.getLogger("taskharbor.server")
_STOP_SECONDS = 2.0
_RETRY_SECONDS = 5.0
_UNSUPPORTED_DATA = 1003

OPERATIONS: list[Operation] = [
    *enqueue.OPERATIONS,
    *jobs.OPERATIONS,
    *workflow_enqueue.OPERATIONS,
    *workflows.OPERATIONS,
    *dlq.OPERATIONS,
    *board.OPERATIONS,
    *series.OPERATIONS,
    *bulk.OPERATIONS,
    *failures.OPERATIONS,
    *audit.OPERATIONS,
    *tokens.OPERATIONS,
    *queues.OPERATIONS,
    *workers.OPERATIONS,
    *schedules.OPERATIONS,
    *events.OPERATIONS,
    *session.OPERATIONS,
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

    The store is opened when the lifespan starts, or else at the first request. The lifespan of a mounted
    application is not run; `async with app.running():` in your own lifespan does the same.

    Args:
        harbor: The harbor to serve.
        config: Limits, and the token file.
        authenticate: How the host application identifies callers, instead of tokens.
        local_callers_are_admin: Without either, serve callers from this machine, as admin. Safe only if the
            server reports true addresses: behind a proxy on this machine, or a server that trusts
            forwarded addresses, everyone is local.
        prefix: The path it is mounted at, for hosts that do not report it (Litestar); links need it.

    Raises:
        ConfigurationError: no way to authenticate callers was given.
    """
    service = Service(
        harbor, config or ServerConfig(), authenticate, local_callers_are_admin=local_callers_are_admin
    )
    if service.config.metrics:
        from taskharbor.web.api.metrics import ServerMetrics

        service.metrics = ServerMetrics(harbor, service.connections, service.board)
    service.board.find_causes = service.failures.new_causes
    service.board.find_slow = service.worker_speeds.of_all
    service.feed.find_bulk = lambda: [
        (action.owner.queues, action.id, bulk.bulk_view(action)) for action in service.bulk.seen_by(LOOPBACK)
    ]
    return App(service, prefix)


class App:
    """The ASGI application. Its routes share `service`."""

    def __init__(self, service: Service, prefix: str | None = None) -> None:
        self.service = service
        self._prefix = None if prefix is None else prefix.rstrip("/")
        self._guard = Guard(service)
        endpoints = _endpoints(service)
        self._at_path = {path: endpoint for path, endpoint in endpoints.items() if "{" not in path}
        """Paths without parameters: found by one lookup, before the router tries its patterns."""
        self._router = Router(
            [Route(path, endpoint=endpoint) for path, endpoint in endpoints.items() if "{" in path],
            default=self._not_found,
            redirect_slashes=False,
            lifespan=lambda _app: self.running(),
        )

    def stop(self) -> None:
        """End event streams and long polls, so that the server can shut down gracefully."""
        self.service.stop()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the store and, if configured, run a scheduler; stop and close both at the end."""
        service = self.service
        service.start()
        # Starlette would load this at the first stream: 20 to 75 ms of CPU in which nobody is served.
        anyio.get_cancelled_exc_class()
        try:
            await service.driver()
        except DriverUnavailable as error:
            service.harbor.driver.outage.failed("open; requests get 503", error)
        scheduler = asyncio.ensure_future(_run_scheduler(service)) if service.config.scheduler else None
        measuring = nullcontext() if service.metrics is None else service.metrics.measuring()
        try:
            async with measuring:
                yield
        finally:
            service.stop()
            if scheduler is not None:
                scheduler.cancel()
                await asyncio.wait((scheduler,), timeout=_STOP_SECONDS)
            if service.background:
                await asyncio.wait(tuple(service.background), timeout=_STOP_SECONDS)
            service.audit.close()
            await service.harbor.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _UNSUPPORTED_DATA})
            return
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        scope, path = self._placed(scope)
        problem = self._guard.check(scope, path)
        if problem is not None:
            request = Request(self.service, scope, receive)
            self.service.audit.note(request, "guard", KINDS[problem.kind][0], is_change=False)
            await _answer(problem, scope, receive, send)
            return
        await (self._at_path.get(path) or self._router)(scope, receive, send)

    def _placed(self, scope: Scope) -> tuple[Scope, str]:
        """The scope with paths as ASGI defines them, and the path below the mount point.

        Starlette keeps the mount path and reports it in `root_path`. Litestar cuts it off without
        reporting it, sometimes with the leading slash of the rest, and appends a slash.
        """
        root, path = scope.get("root_path", ""), scope["path"]
        if root and (path == root or path.startswith(root + "/")):
            path = path[len(root) :]
        if not path.startswith("/"):
            path = "/" + path
        had_slash = path.endswith("/")
        if had_slash and path != "/":
            path = path[:-1]
        root = root if self._prefix is None else self._prefix
        if scope["path"] != root + path or scope.get("root_path", "") != root:
            scope = {**scope, "root_path": root, "path": root + path, HAD_SLASH: had_slash}
        return scope, path

    async def _not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _answer(
            Problem("not-found", "no such path; GET /api/openapi.json lists them all"), scope, receive, send
        )


async def _answer(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    reply = problem_response(problem, instance=scope["path"], request_id=scope[REQUEST_ID])
    await deliver(reply, scope, receive, send)


async def _run_scheduler(service: Service) -> None:
    """Run a scheduler on its own driver; try again while the store is unavailable."""
    while not service.stopping.is_set():
        try:
            await service.harbor.schedules.astore()
            async with service.harbor.driver.another() as driver:
                await Scheduler(driver, name="server", events=service.harbor.events).arun()
        except DriverUnavailable as error:
            service.harbor.driver.outage.failed("open, for the scheduler", error)
        except Exception:  # noqa: BLE001 - logged with its traceback; requests are still served
            _log.exception("the scheduler of this server stopped unexpectedly; restarting it")
        await service.pause(_RETRY_SECONDS)


def _endpoints(service: Service) -> dict[str, Endpoint]:
    operations = OPERATIONS if service.metrics is None else [*OPERATIONS, service.metrics.operation()]
    operations = [*operations, *DriverVerbs(service).operations()]
    document = openapi_operation(operations)
    pages = [] if service.config.ui == "off" else ui.operations_of(Pages(service.config.frame_ancestors))
    return endpoints_of(service, [*operations, document, *pages])
