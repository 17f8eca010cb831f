"""Operations and endpoints: what can be called, and everything that happens around a handler.

authenticate → rate → role → handler → answer, or problem → audit
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
from taskharbor.web.auth import LOOPBACK, Principal
from taskharbor.web.call import Call, Disconnected
from taskharbor.web.problems import Problem, problem_of, problem_response
from taskharbor.web.reply import Reply, deliver
from taskharbor.web.rights import Rights, rights_of
from taskharbor.web.service import Service

_log = logging.getLogger("taskharbor.server")

Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path: who may call it, what goes in, what comes out."""

    method: str
    path: str
    handler: Handler
    summary: str
    meter: Literal["token", "driver"] | None = "token"
    """The rate of the caller that it counts against, if any: the API's, or that of the driver's verbs."""

    name: str
    """What the table of rights, the audit log and the OpenAPI document call it."""

    old_path: str | None = None
    """A path that means the same for callers who know it; the document does not have it."""

    query: type[msgspec.Struct] | None = None
    body: Any = None
    is_body_optional: bool = False
    answer: Any = None
    status: int = 200
    media_type: str = "application/json"
    headers: tuple[tuple[str, str, str], ...] = ()
    """Headers of a request that mean something here: name, pattern of the value, meaning."""

    problems: tuple[str, ...] = ()
    """The kinds of problem it may answer with, besides those that every operation has."""

    @property
    def rights(self) -> Rights:
        """Who may call it: its row in the one table."""
        return rights_of(self.name)


class Endpoint:
    """The operations of one path, as an ASGI application."""

    def __init__(self, service: Service, operations: Sequence[Operation]) -> None:
        self._service = service
        self._authenticator = service.authenticator
        self._by_method = {operation.method: operation for operation in operations}
        look = self._by_method.get("GET")
        if look is not None and look.media_type == "application/json":  # the head of a stream never ends
            self._by_method.setdefault("HEAD", look)
        self._allowed = ", ".join(sorted(self._by_method))
        self._rights = {method: operation.rights for method, operation in self._by_method.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(self._service, scope, receive)
        try:
            await self._serve(call, scope, receive, send)
        finally:
            call.done()

    async def _serve(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._by_method.get(scope["method"])
        try:
            if operation is None:
                raise _no_such_method(self._allowed)
            rights = self._rights[scope["method"]]
            if not rights.is_open:
                principal = call.principal = await self._authenticator.principal_of(call)
                self._let_in(principal, operation, rights)
            response = await operation.handler(call)
            if not rights.is_open:  # those that are open to all ask no store, or tell of it themselves
                self._service.harbor.driver.outage.answered()
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - the last stop before the caller, who gets a problem
            response = _told(error, call)
        if operation is not None:
            is_change = self._rights[operation.method].is_audited
            self._service.audit.note(call, operation.name, response.status_code, is_change=is_change)
        await deliver(response, scope, receive, send)

    def _let_in(self, principal: Principal, operation: Operation, rights: Rights) -> None:
        if operation.meter is not None and principal is not LOOPBACK:
            buckets = self._service.buckets if operation.meter == "token" else self._service.driver_buckets
            wait = buckets.wait_seconds(principal.name)
            if wait:
                raise _too_often(operation.meter, wait, buckets.per_second)
        rights.check(principal, operation.name)


def _told(error: Exception, call: Call) -> Reply:
    """What went wrong, to the caller; what nobody foresaw, to the log."""
    if isinstance(error, Problem):
        problem = error
    elif isinstance(error, TaskHarborError):
        problem = problem_of(error)
        if isinstance(error, DriverUnavailable):
            call.service.harbor.driver.outage.failed("a request", error)
    else:
        _log.error("request %s failed in a way that was not foreseen", call.request_id, exc_info=error)
        problem = Problem("internal", "something went wrong here; the log has it under this request id")
    return problem_response(problem, instance=call.scope["path"], request_id=call.request_id)


def _no_such_method(allowed: str) -> Problem:
    return Problem("method-not-allowed", f"this path answers {allowed}", headers={"Allow": allowed})


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
