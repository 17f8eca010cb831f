"""Decodes a response: the verb's answer, or the error to raise."""

from __future__ import annotations

from typing import Any

import msgspec

from taskharbor.drivers import wire
from taskharbor.drivers.error_codec import Failure, error_of
from taskharbor.drivers.http.address import TOKEN_VARIABLE, Address
from taskharbor.drivers.http.response import NotHttp, ResponseParser
from taskharbor.errors import (
    DriverMisbehaved,
    DriverUnavailable,
    Forbidden,
    InvalidArgument,
    StoreRefused,
    TaskHarborError,
)

_PROBLEM = "urn:taskharbor:problem:"
_PROTOCOL = wire.PROTOCOL_HEADER.lower()
_BUSY = (502, 503, 504)
_WE_SPEAK = str(wire.PROTOCOL)


class ResponseTooLarge(InvalidArgument):
    """The answer would exceed the server's limit: ask for less."""


class _Problem(msgspec.Struct):
    """The parts of problem+json that we read. `failure` is the verb's own error, if it had one."""

    type: str = ""
    detail: str = ""
    request_id: str = ""
    failure: Failure | None = None


def read(verb: str, response: ResponseParser, address: Address) -> Any:
    """The verb's answer. Raises the verb's error, or the error of a server or proxy."""
    body = response.take_body()
    if is_success(response):
        try:
            return wire.read_answer(verb, body)
        except msgspec.DecodeError as error:
            raise DriverMisbehaved(f"{address.shown} answered {verb} with something else: {error}") from None
    raise error_in(response, body, address)


def is_success(response: ResponseParser) -> bool:
    """True for a success of a server that speaks our protocol."""
    return response.status == 200 and response.headers.get(_PROTOCOL) == _WE_SPEAK


def error_in(response: ResponseParser, body: bytes, address: Address) -> TaskHarborError:
    """The error for a response that is no success."""
    problem = _problem_in(response, body)
    spoken = response.headers.get(_PROTOCOL)
    if problem is not None and problem.failure is not None:
        return error_of(problem.failure)
    if spoken is not None and spoken != _WE_SPEAK:
        return StoreRefused(
            f"{address.shown} speaks protocol {spoken[:20]}, this program protocol {_WE_SPEAK}; nothing was "
            "done. Install the same version of taskharbor on both sides"
        )
    if problem is None:
        return _of_a_stranger(response, body, address)
    return _of_problem(response, problem, address)


def _problem_in(response: ResponseParser, body: bytes) -> _Problem | None:
    if not response.headers.get("content-type", "").startswith("application/problem+json"):
        return None
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except msgspec.DecodeError:
        return None
    return problem if problem.type.startswith(_PROBLEM) else None


def _of_problem(response: ResponseParser, problem: _Problem, address: Address) -> TaskHarborError:
    where, detail = address.shown, problem.detail
    match response.status:
        case 401 if address.token is None:
            return StoreRefused(
                f"{where} wants a token, and there is none: set {TOKEN_VARIABLE}, or write it into the URL"
            )
        case 401:
            return StoreRefused(f"{where} does not take this token: it is wrong, expired or revoked")
        case 403:
            return Forbidden(f"{where} does not allow this: {detail}")
        case 404:
            return StoreRefused(f"{where} is a TaskHarbor server without this verb: {detail}")
        case 413 if problem.type == f"{_PROBLEM}answer-too-large":
            return ResponseTooLarge(f"{where} refused the call: {detail}; nothing was done")
        case 400 | 413 | 415 | 422 | 431:
            return InvalidArgument(f"{where} refused the call: {detail}; nothing was done")
        case 408 | 429 | 503:
            return DriverUnavailable(f"{where} cannot answer now: {detail}", done=False)
        case _:
            return DriverMisbehaved(f"{where} failed: {detail} (request {problem.request_id})")


def _of_a_stranger(response: ResponseParser, body: bytes, address: Address) -> TaskHarborError:
    kind = response.headers.get("content-type", "without a type").partition(";")[0]
    status = f"{response.status} {kind}"
    if response.status in _BUSY:
        return DriverUnavailable(
            f"something before {address.shown} answered {status}; the call may have been done", done=None
        )
    if response.status == 429:
        return DriverUnavailable(f"something before {address.shown} asks for less: {status}", done=False)
    if response.status == 413:
        return InvalidArgument(
            f"something before {address.shown} refused the size of the call: {status}; nothing was done"
        )
    return StoreRefused(
        f"{address.shown} is no TaskHarbor server, or a proxy answers for it: {status}, "
        f"{body[:60]!r}…; check host, port and path of the URL"
    )


def not_http(error: NotHttp, address: Address) -> TaskHarborError:
    return StoreRefused(f"{address.shown} is no HTTP server: {error}; check the URL")
