"""The driver contract over HTTP: `POST /api/driver/{verb}`, for workers without a way to the store.

body → queues → done once, however often it is sent → answer, or the error as problem and data
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
from taskharbor.web.body_sizes import largest_body
from taskharbor.web.call import Call
from taskharbor.web.driver_claims import Claims
from taskharbor.web.driver_rights import Narrowed, WorkerNames, check_amounts, check_queues, told_to_audit
from taskharbor.web.driver_wakeups import HintStream, wakeup_lines
from taskharbor.web.duplicates import own_duplicates
from taskharbor.web.endpoint import Operation
from taskharbor.web.portions import Portioned
from taskharbor.web.problems import Problem, problem_of
from taskharbor.web.reading import refuse_double_keys
from taskharbor.web.redaction import shown_to
from taskharbor.web.repeats import Kept, Repeats
from taskharbor.web.reply import Reply
from taskharbor.web.rights import Rights, rights_of
from taskharbor.web.service import Service

_PREFIX = "/api/driver"
_NO_NOW = "this server keeps its own time; an explicit `now` is for servers under test. Nothing was done"
_CALL = wire.CALL_HEADER.lower().encode()
_REPEAT = wire.REPEAT_HEADER.lower().encode()
_PROTOCOL = wire.PROTOCOL_HEADER.lower().encode()
_WE_SPEAK = str(PROTOCOL).encode()

_CALL_ID = "[!-~]{1,200}"
_FIRST_TRY = r"[!-~]{1,200} [0-9]{1,9}(\.[0-9]{1,9})?"
_is_call_id = re.compile(_CALL_ID.encode()).fullmatch
_is_first_try = re.compile(_FIRST_TRY.encode()).fullmatch
_REQUEST_HEADERS = (
    (wire.PROTOCOL_HEADER, f"^{PROTOCOL}$", "The version of these messages; without it, the server's own."),
    (wire.CALL_HEADER, f"^{_CALL_ID}$", "The id of the call: one that is sent again has the same."),
    (
        wire.REPEAT_HEADER,
        f"^{_FIRST_TRY}$",
        "On a call that is sent again: who was asked first, and how many seconds ago.",
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
    """The verbs as operations, one per path."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._repeats = Repeats(service.entropy.bytes(8).hex(), service.clock)
        self._claims = Claims(service, self._repeats)
        self._worker_names = WorkerNames(service.clock)
        self._headers = {wire.PROTOCOL_HEADER: str(PROTOCOL), wire.BOOT_HEADER: self._repeats.boot}

    def operations(self) -> list[Operation]:
        return [self._operation(verb) for verb in VERBS.values()]

    def _operation(self, verb: Verb) -> Operation:
        return Operation(
            method="POST",
            path=f"{_PREFIX}/{verb.name}",
            name=f"driver.{verb.name}",
            summary=f"The verb {verb.name} of the driver contract",
            handler=partial(self._answer, verb),
            meter=None if _rights(verb).roles[:1] == ("worker",) else "driver",
            body=verb.request,
            answer=NoneType if verb.answer is None else verb.answer,  # null is said too
            media_type="application/x-ndjson" if verb.name == "wakeups" else "application/json",
            headers=_REQUEST_HEADERS,
            problems=_PROBLEMS,
        )

    # ------------------------------------------------------------------ one call

    async def _answer(self, verb: Verb, call: Call) -> Response:
        try:
            return await self._do(verb, call)
        except TaskHarborError as error:
            problem = _with_failure(error)
        except Problem as error:
            problem = error
        problem.headers |= self._headers
        raise problem

    async def _do(self, verb: Verb, call: Call) -> Response:
        self._check_headers(call)
        sent = await call.body(largest_body(verb.name, self._service.config, self._service.harbor.driver))
        arguments = self._arguments(verb, sent)
        if _rights(verb).is_audited:
            call.audited = told_to_audit(verb.name, arguments)
        check_queues(call.principal, verb, arguments)
        driver = await self._service.driver()
        if verb.name != "forget_worker":  # that of another is not there
            await self._worker_names.check(call.principal, driver, arguments)
        if verb.name in ("enqueue", "put_schedule"):
            await check_amounts(call, driver, verb.name, arguments)
        if verb.name == "wakeups":
            return self._stream(call, driver, arguments)
        body = await self._once(verb, call, sent, partial(self._body, verb, call, driver, arguments))
        return Reply(body, headers=self._headers)

    def _arguments(self, verb: Verb, body: bytes) -> dict[str, Any]:
        try:
            arguments = wire.read_request(verb.name, body)
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

    def _check_headers(self, call: Call) -> None:
        """One who says nothing may have written the call by hand."""
        call_id, repeat, spoken = call.head(_CALL), call.head(_REPEAT), call.head(_PROTOCOL)
        if call_id is not None and not _is_call_id(call_id):
            raise Problem("validation", f"{wire.CALL_HEADER} is up to 200 characters of ASCII without spaces")
        if repeat is not None and not _is_first_try(repeat):
            raise Problem(
                "validation", f"{wire.REPEAT_HEADER} is who was asked first, and seconds since then"
            )
        if spoken is not None and spoken != _WE_SPEAK:
            other = spoken[:20].decode("latin-1")
            raise Problem("validation", f"this server speaks protocol {PROTOCOL}, not {other!r}")

    async def _once(
        self, verb: Verb, call: Call, sent: bytes, do: Callable[[Kept | None], Awaitable[bytes]]
    ) -> bytes:
        call_id = call.head(_CALL) if verb.is_change else None
        if call_id is None:
            return await do(None)
        key = (call.principal.name, verb.name, call_id, hash(sent))
        repeat = call.head(_REPEAT)
        if repeat is None:
            return await self._repeats.once(key, do)
        return await self._repeats.again(key, repeat, verb.may_repeat, do)

    async def _body(
        self, verb: Verb, call: Call, driver: Driver, arguments: dict[str, Any], kept: Kept | None
    ) -> bytes:
        match verb.name:
            case "hello":
                return wire.encode(self._hello(driver))
            case "reserve" | "exchange":
                return wire.encode(await self._claims.claimed(verb.name, call, driver, arguments, kept))
        principal = call.principal
        shown = None if principal.sees_payloads else partial(shown_to, principal)
        portioned: Any = Portioned(driver, self._service.portions, shown)
        if principal.queues is None:
            answer = await getattr(portioned, verb.name)(**arguments)
        else:
            answer = await Narrowed(principal, portioned).call(verb.name, arguments)
        if verb.name == "enqueue":
            answer = await own_duplicates(call, driver, arguments["jobs"], answer)
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

    def _stream(self, call: Call, driver: Driver, arguments: dict[str, Any]) -> Response:
        for queue in arguments["queues"]:  # before the stream begins: then it is too late to refuse
            check_name(queue, "queue")
        check_worker_id(arguments["worker_id"])
        place = self._service.wakeup_streams.take(call.principal)
        headers = {**self._headers, "X-Accel-Buffering": "no"}
        return HintStream(wakeup_lines(call, driver, **arguments), place, headers)


def _rights(verb: Verb) -> Rights:
    return rights_of(f"driver.{verb.name}")


def _with_failure(error: TaskHarborError) -> Problem:
    """The error as a problem for people, and as data for the driver at the other end."""
    if isinstance(error, DriverClosed):  # the server's own handle, not the caller's
        error = DriverUnavailable("the server is closing its store", done=False)
    problem = problem_of(error)
    problem.failure = failure_of(error)
    return problem
