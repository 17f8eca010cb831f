"""Operations and endpoints: the routes, and everything that happens around a handler.

authenticate → rate limit → permission → handler → answer, or problem → audit
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from taskharbor.errors import DriverUnavailable, TaskHarborError
from taskharbor.web.api.schemas import NoQuery
from taskharbor.web.auth import LOOPBACK, Principal
from taskharbor.web.parsing import read_query
from taskharbor.web.permissions import AccessRule, access_rule
from taskharbor.web.problems import Problem, problem_of, problem_response
from taskharbor.web.reply import HEAD, Reply, deliver
from taskharbor.web.request import Disconnected, Request
from taskharbor.web.service import Service
from taskharbor.web.sessions import SAFE_METHODS, check_own_page, has_token

_log = logging.getLogger("taskharbor.server")

Handler = Callable[[Request], Awaitable[Response]]
_COMPLETE = ("application/json", "text/html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path: who may call it, its input and its answer."""

    method: str
    path: str
    handler: Handler
    summary: str
    meter: Literal["token", "driver"] | None = "token"
    """Which rate limit of the caller applies, if any: that of the API or that of the driver verbs."""

    name: str
    """Its name in the table of permissions, the audit log and the OpenAPI document."""

    old_path: str | None = None
    """An alias for older callers; the OpenAPI document leaves it out."""

    query: type[msgspec.Struct] | None = NoQuery
    """What the query string is parsed into, as `request.query`. None: the query string is ignored."""

    body: Any = None
    is_body_optional: bool = False
    answer: Any = None
    status: int = 200
    media_type: str = "application/json"
    headers: tuple[tuple[str, str, str], ...] = ()
    """Request headers that matter here: name, pattern of the value, meaning."""

    problems: tuple[str, ...] = ()
    """Problems it may answer with, besides those of every operation."""

    @property
    def access_rule(self) -> AccessRule:
        """Who may call it: its row in the table of permissions."""
        return access_rule(self.name)


class Endpoint:
    """The operations of one path, as an ASGI application."""

    def __init__(self, service: Service, operations: Sequence[Operation]) -> None:
        self._service = service
        self._authenticator = service.authenticator
        self._by_method = {operation.method: operation for operation in operations}
        get = self._by_method.get("GET")
        if get is not None and get.media_type in _COMPLETE:  # HEAD of a stream would never end
            self._by_method.setdefault("HEAD", get)
        self._allowed = ", ".join(sorted(self._by_method))
        self._rights = {method: operation.access_rule for method, operation in self._by_method.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(self._service, scope, receive)
        try:
            await self._serve(request, scope, receive, send)
        finally:
            request.done()

    async def _serve(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._by_method.get(scope["method"])
        try:
            if operation is None:
                raise _no_such_method(self._allowed)
            rule = self._rights[scope["method"]]
            if not rule.is_open:
                principal = request.principal = await self._authenticator.principal_of(request)
                self._check_access(principal, operation, rule)
                self._check_page(request, operation, rule)
            if operation.query is not None:
                request.query = read_query(scope["query_string"], operation.query)
            response = await operation.handler(request)
            if not rule.is_open:  # open ones ask no store, or report its outage themselves
                outage = self._service.harbor.driver.outage
                if outage.is_away:
                    outage.answered()
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - the caller gets every error as a problem
            response = _problem_reply(error, request)
        if operation is not None:
            is_change = self._rights[operation.method].is_audited
            self._service.audit.note(request, operation.name, response.status_code, is_change=is_change)
        await deliver(response, scope, receive, send)

    def _check_access(self, principal: Principal, operation: Operation, rule: AccessRule) -> None:
        if operation.meter is not None and principal is not LOOPBACK:
            limiter = (
                self._service.rate_limit if operation.meter == "token" else self._service.driver_rate_limit
            )
            wait = limiter.wait_seconds(principal.name)
            if wait:
                raise _too_often(operation.meter, wait, limiter.per_second)
        rule.check(principal, operation.name)

    def _check_page(self, request: Request, operation: Operation, rule: AccessRule) -> None:
        """Raises Problem `forbidden` for a change by cookie from a page that may not make it."""
        head = request.scope[HEAD]
        if request.method in SAFE_METHODS or has_token(head):
            return
        by_cookie = b"cookie" in head and not self._authenticator.is_open_to_loopback
        if by_cookie:
            check_own_page(head)
        is_change = rule.is_audited or operation.name.startswith("driver.")
        if is_change and self._service.config.ui == "read-only" and (by_cookie or b"sec-fetch-site" in head):
            raise Problem("forbidden", "the dashboard of this server is read-only; nothing was done")


def _problem_reply(error: Exception, request: Request) -> Reply:
    """The error as a problem; an unexpected one is logged with its traceback."""
    if isinstance(error, Problem):
        problem = error
    elif isinstance(error, TaskHarborError):
        problem = problem_of(error)
        if isinstance(error, DriverUnavailable):
            request.service.harbor.driver.outage.failed("a request", error)
    else:
        _log.error("request %s failed with an unexpected error", request.request_id, exc_info=error)
        problem = Problem(
            "internal", "an unexpected error; the server's log has the traceback under this request id"
        )
    return problem_response(problem, instance=request.scope["path"], request_id=request.request_id)


def _no_such_method(allowed: str) -> Problem:
    return Problem("method-not-allowed", f"this path allows {allowed}", headers={"Allow": allowed})


def _too_often(meter: str, wait_seconds: float, per_second: float) -> Problem:
    seconds = max(1, math.ceil(wait_seconds))
    return Problem(
        "rate-limited",
        f"this token may call {per_second:g} times a second; nothing was done",
        headers={
            "Retry-After": str(seconds),
            "RateLimit-Policy": f'"{meter}";q={per_second:g};w=1',
            "RateLimit": f'"{meter}";r=0;t={seconds}',
        },
    )


def endpoints_of(service: Service, operations: Sequence[Operation]) -> dict[str, Endpoint]:
    """One endpoint per path, in the order in which the paths first appear."""
    by_path: dict[str, list[Operation]] = {}
    for operation in operations:
        for path in (operation.path, operation.old_path):
            if path is not None:
                by_path.setdefault(path, []).append(operation)
    return {path: Endpoint(service, found) for path, found in by_path.items()}
