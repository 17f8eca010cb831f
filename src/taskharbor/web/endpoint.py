"""Operations and endpoints: what can be called, and everything that happens around a handler.

authenticate → rate → role → handler → answer, or problem → audit
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from taskharbor.errors import TaskHarborError
from taskharbor.web.auth import LOOPBACK, Right
from taskharbor.web.call import Call, Disconnected
from taskharbor.web.problems import Problem, problem_of, problem_response
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
    role: Right | None = None
    """The role that is needed; None: any caller who is known."""

    is_open: bool = False
    """Answered without asking who calls."""

    is_change: bool = False
    """Changes something, and so is audited also when it succeeds."""

    is_metered: bool = True
    """Counts against the caller's rate."""

    name: str = ""
    """What the audit log and the OpenAPI document call it."""

    query: type[msgspec.Struct] | None = None
    body: Any = None
    is_body_optional: bool = False
    answer: Any = None
    status: int = 200
    media_type: str = "application/json"
    problems: tuple[str, ...] = ()
    """The kinds of problem it may answer with, besides those that every operation has."""


class Endpoint:
    """The operations of one path, as an ASGI application."""

    def __init__(self, service: Service, operations: Sequence[Operation]) -> None:
        self._service = service
        self._by_method = {operation.method: operation for operation in operations}
        look = self._by_method.get("GET")
        if look is not None and look.media_type == "application/json":  # the head of a stream never ends
            self._by_method.setdefault("HEAD", look)
        self._allowed = ", ".join(sorted(self._by_method))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(self._service, scope, receive)
        operation = self._by_method.get(scope["method"])
        try:
            response = await self._answer(call, operation)
        except Disconnected:
            return
        if operation is not None:
            self._service.audit.note(
                call, operation.name, response.status_code, is_change=operation.is_change
            )
        await response(scope, receive, send)

    async def _answer(self, call: Call, operation: Operation | None) -> Response:
        try:
            if operation is None:
                raise _no_such_method(self._allowed)
            if not operation.is_open:
                await self._let_in(call, operation)
            return await operation.handler(call)
        except (Problem, TaskHarborError) as error:
            problem = error if isinstance(error, Problem) else problem_of(error)
        except Disconnected:
            raise
        except Exception:  # noqa: BLE001 - the last stop before the caller: they get a problem, the log the rest
            _log.exception("request %s failed in a way that was not foreseen", call.request_id)
            problem = Problem("internal", "something went wrong here; the log has it under this request id")
        return problem_response(problem, instance=call.scope["path"], request_id=call.request_id)

    async def _let_in(self, call: Call, operation: Operation) -> None:
        principal = call.principal = await self._service.authenticator.principal_of(call)
        if operation.is_metered and principal is not LOOPBACK:
            wait = self._service.buckets.wait_seconds(principal.name)
            if wait:
                raise _too_often(wait, self._service.config.rate_per_second)
        if operation.role is not None:
            call.require(operation.role)


def _no_such_method(allowed: str) -> Problem:
    return Problem("method-not-allowed", f"this path answers {allowed}", headers={"Allow": allowed})


def _too_often(wait_seconds: float, per_second: float) -> Problem:
    seconds = max(1, math.ceil(wait_seconds))
    return Problem(
        "rate-limited",
        f"this token may call {per_second:g} times a second; nothing was done",
        headers={
            "Retry-After": str(seconds),
            "RateLimit-Policy": f'"token";q={per_second:g};w=1',
            "RateLimit": f'"token";r=0;t={seconds}',
        },
    )


def routes_of(service: Service, operations: Sequence[Operation]) -> list[BaseRoute]:
    """One route per path, in the order in which the paths first appear."""
    by_path: dict[str, list[Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, []).append(operation)
    return [Route(path, endpoint=Endpoint(service, found)) for path, found in by_path.items()]


_encoder = msgspec.json.Encoder()


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_encoder.encode(value), status, headers, media_type="application/json")
