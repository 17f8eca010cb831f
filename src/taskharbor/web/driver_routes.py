"""The driver contract over HTTP: `POST /api/driver/{verb}`, for workers that cannot reach the store.

parse → check queues → do it once, even if it is sent again → answer, or the error as problem and data
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from types import NoneType
from typing import Any

import msgspec
from starlette.responses import Response

from taskharbor import __version__
from taskharbor.drivers import wire
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.error_codec import failure_of
from taskharbor.drivers.wire import PROTOCOL, VERBS, Hello, Verb
from taskharbor.errors import DriverClosed, DriverUnavailable, TaskHarborError
from taskharbor.model.checks import check_name, check_worker_id
from taskharbor.web.answer_limit import LimitedDriver
from taskharbor.web.body_limits import largest_body
from taskharbor.web.driver_claims import Claims
from taskharbor.web.driver_wakeups import WakeupStream, wakeup_lines
from taskharbor.web.endpoint import Operation
from taskharbor.web.family_scope import OwnEnds
from taskharbor.web.parsing import refuse_double_keys
from taskharbor.web.permissions import AccessRule, access_rule
from taskharbor.web.problems import Problem, problem_of
from taskharbor.web.queue_scope import (
    QueueScopedDriver,
    WorkerNames,
    audit_details,
    check_amounts,
    check_books,
    check_queues,
)
from taskharbor.web.redaction import hide_foreign_duplicates, shown_to
from taskharbor.web.replay_cache import CachedReply, ReplayCache
from taskharbor.web.reply import Reply
from taskharbor.web.request import Request
from taskharbor.web.service import Service

_PREFIX = "/api/driver"
_NO_NOW = "this server uses its own clock; `now` is accepted only by servers under test. Nothing was done"
_CALL = wire.CALL_HEADER.lower().encode()
_REPEAT = wire.REPEAT_HEADER.lower().encode()
_PROTOCOL = wire.PROTOCOL_HEADER.lower().encode()
_WE_SPEAK = str(PROTOCOL).encode()

_CALL_ID = "[!-~]{1,200}"
_FIRST_TRY = r"[!-~]{1,200} [0-9]{1,9}(\.[0-9]{1,9})?"
_is_call_id = re.compile(_CALL_ID.encode()).fullmatch
_is_first_try = re.compile(_FIRST_TRY.encode()).fullmatch
_REQUEST_HEADERS = (
    (wire.PROTOCOL_HEADER, f"^{PROTOCOL}$", "The protocol version; default: the server's own."),
    (wire.CALL_HEADER, f"^{_CALL_ID}$", "The id of the call; a call that is sent again keeps it."),
    (
        wire.REPEAT_HEADER,
        f"^{_FIRST_TRY}$",
        "On a call that is sent again: the boot id of the first server, and the seconds since.",
    ),
)
_PROBLEMS = (
    "not-found",
    "timeout",
    "duplicate-job",
    "wrong-state",
    "lease-lost",
    "cannot-tell",
    "payload-too-large",
    "answer-too-large",
    "unsupported-media-type",
    "too-busy",
)


class DriverVerbs:
    """The driver verbs as operations, one per path."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._replay_cache = ReplayCache(service.entropy.bytes(8).hex(), service.clock)
        self._claims = Claims(service, self._replay_cache)
        self._worker_names = WorkerNames(service.clock)
        self._headers = {wire.PROTOCOL_HEADER: str(PROTOCOL), wire.BOOT_HEADER: self._replay_cache.boot}

    def operations(self) -> list[Operation]:
        return [self._operation(verb) for verb in VERBS.values()]

    def _operation(self, verb: Verb) -> Operation:
        return Operation(
            method="POST",
            path=f"{_PREFIX}/{verb.name}",
            name=f"driver.{verb.name}",
            summary=f"The driver verb {verb.name}",
            handler=partial(self._answer, verb),
            meter=None if _rights(verb).roles[:1] == ("worker",) else "driver",
            query=None,
            body=verb.request,
            answer=NoneType if verb.answer is None else verb.answer,  # null is documented, too
            media_type="application/x-ndjson" if verb.name == "wakeups" else "application/json",
            headers=_REQUEST_HEADERS,
            problems=_PROBLEMS,
        )

    # ------------------------------------------------------------------ one call

    async def _answer(self, verb: Verb, request: Request) -> Response:
        try:
            return await self._do(verb, request)
        except TaskHarborError as error:
            problem = _with_failure(error)
        except Problem as error:
            problem = error
        problem.headers |= self._headers
        raise problem

    async def _do(self, verb: Verb, request: Request) -> Response:
        self._check_headers(request)
        sent = await request.body(largest_body(verb.name, self._service.config, self._service.harbor.driver))
        arguments = self._arguments(verb, sent)
        if _rights(verb).is_audited:
            request.audited = audit_details(verb.name, arguments)
        check_queues(request.principal, verb, arguments)
        check_books(request.principal, verb.name, arguments)
        driver = await self._service.driver()
        if verb.name != "forget_worker":  # a worker of other queues looks unknown to it
            await self._worker_names.check(request.principal, driver, arguments)
        if verb.name in ("enqueue", "resolve", "put_schedule"):
            await check_amounts(request, driver, verb.name, arguments)
        if verb.name == "wakeups":
            return self._stream(request, driver, arguments)
        body = await self._once(verb, request, sent, partial(self._body, verb, request, driver, arguments))
        return Reply(body, headers=self._headers)

    def _arguments(self, verb: Verb, body: bytes) -> dict[str, Any]:
        try:
            arguments = wire.read_request(verb.name, body)
            if wire.encode(arguments) != body:  # our own driver writes it like this, and nothing was dropped
                refuse_double_keys(body)
        except msgspec.ValidationError as error:
            raise Problem("validation", f"{error}; nothing was done") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Problem("malformed", "the body is not JSON in UTF-8; nothing was done") from None
        if "now" in arguments:
            if arguments["now"] is None:
                arguments["now"] = self._service.now()
            elif not self._service.config.accepts_now:
                raise Problem("forbidden", _NO_NOW)
        return arguments

    def _check_headers(self, request: Request) -> None:
        """All of them are optional: a person may call a verb with curl."""
        call_id, repeat, spoken = request.head(_CALL), request.head(_REPEAT), request.head(_PROTOCOL)
        if call_id is not None and not _is_call_id(call_id):
            raise Problem("validation", f"{wire.CALL_HEADER} is up to 200 characters of ASCII without spaces")
        if repeat is not None and not _is_first_try(repeat):
            raise Problem(
                "validation", f"{wire.REPEAT_HEADER} is the boot id of the first server and the seconds since"
            )
        if spoken is not None and spoken != _WE_SPEAK:
            other = spoken[:20].decode("latin-1")
            raise Problem(
                "validation",
                f"this server speaks protocol {PROTOCOL}, the caller {other!r}; upgrade the older side",
            )

    async def _once(
        self, verb: Verb, request: Request, sent: bytes, do: Callable[[CachedReply | None], Awaitable[bytes]]
    ) -> bytes:
        call_id = request.head(_CALL) if verb.is_change else None
        if call_id is None:
            return await do(None)
        key = (request.principal.name, verb.name, call_id, hash(sent))
        repeat = request.head(_REPEAT)
        if repeat is None:
            return await self._replay_cache.once(key, do)
        return await self._replay_cache.again(key, repeat, verb.may_repeat, do)

    async def _body(
        self,
        verb: Verb,
        request: Request,
        driver: Driver,
        arguments: dict[str, Any],
        kept: CachedReply | None,
    ) -> bytes:
        principal = request.principal
        ends = OwnEnds(principal, driver, self._service.harbor.events)
        match verb.name:
            case "hello":
                return wire.encode(self._hello(driver))
            case "reserve" | "exchange":
                claimed = await self._claims.claimed(verb.name, request, driver, arguments, kept)
                return wire.encode(claimed if principal.queues is None else await ends.of(claimed))
        shown = None if principal.sees_payloads else partial(shown_to, principal)
        scope: Any = LimitedDriver(driver, self._service.answer_limit, shown)
        if principal.queues is None:
            answer = await getattr(scope, verb.name)(**arguments)
        else:
            answer = await QueueScopedDriver(principal, scope, ends).call(verb.name, arguments)
        if verb.name == "enqueue":
            answer = await hide_foreign_duplicates(request, driver, arguments["jobs"], answer)
        return wire.encode(shown_to(principal, answer))

    def _hello(self, driver: Driver) -> Hello:
        config = self._service.config
        return Hello(
            version=__version__,
            capabilities=driver.capabilities,
            takes_now=config.accepts_now,
            max_body=config.max_batch_bytes,
            max_payload=driver.max_payload,
        )

    def _stream(self, request: Request, driver: Driver, arguments: dict[str, Any]) -> Response:
        for queue in arguments["queues"]:  # before the stream begins: later it cannot be refused
            check_name(queue, "queue")
        check_worker_id(arguments["worker_id"])
        slot = self._service.wakeup_streams.take(request.principal)
        headers = {**self._headers, "X-Accel-Buffering": "no"}
        return WakeupStream(wakeup_lines(request, driver, **arguments), slot, headers)


def _rights(verb: Verb) -> AccessRule:
    return access_rule(f"driver.{verb.name}")


def _with_failure(error: TaskHarborError) -> Problem:
    """The error as a problem for people, and as data for the HTTP driver."""
    if isinstance(error, DriverClosed):  # the server's driver is closed, not the caller's
        error = DriverUnavailable("the server is closing its store", done=False)
    problem = problem_of(error)
    problem.failure = failure_of(error)
    return problem
