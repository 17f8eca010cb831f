"""What an answer means: ours, a problem of ours, or the words of something in between."""

import msgspec
import pytest

from taskharbor.drivers.http import decoding
from taskharbor.drivers.http.address import Address, address_of
from taskharbor.drivers.http.response import ResponseParser
from taskharbor.errors import (
    DriverMisbehaved,
    DriverUnavailable,
    Forbidden,
    InvalidArgument,
    JobNotFound,
    StoreRefused,
    TaskHarborError,
)

WHERE = address_of("http://host", {})
WITH_TOKEN = address_of("http://secret@host", {})
PROBLEM = "application/problem+json"


def answer_of(status: int, body: bytes, kind: str, protocol: str | None = "1") -> ResponseParser:
    spoken = "" if protocol is None else f"TaskHarbor-Protocol: {protocol}\r\n"
    head = (
        f"HTTP/1.1 {status} Whatever\r\nContent-Type: {kind}\r\n{spoken}Content-Length: {len(body)}\r\n\r\n"
    )
    response = ResponseParser()
    response.feed(head.encode() + body)
    return response


def problem(status: int, **fields: object) -> ResponseParser:
    body = {"type": "urn:taskharbor:problem:kind", "detail": "the detail", "request_id": "r-1"} | fields
    return answer_of(status, msgspec.json.encode(body), PROBLEM)


def error_of(response: ResponseParser, address: Address = WHERE) -> TaskHarborError:
    with pytest.raises(TaskHarborError) as raised:
        decoding.read("count", response, address)
    return raised.value


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (400, InvalidArgument, "refused the call: the detail; nothing was done"),
        (401, StoreRefused, "wants a token, and there is none: set TASKHARBOR_TOKEN"),
        (403, Forbidden, "does not allow this: the detail"),
        (404, StoreRefused, "without this verb: the detail"),
        (413, InvalidArgument, "nothing was done"),
        (415, InvalidArgument, "nothing was done"),
        (422, InvalidArgument, "nothing was done"),
        (431, InvalidArgument, "nothing was done"),
        (408, DriverUnavailable, "cannot answer now"),
        (429, DriverUnavailable, "cannot answer now"),
        (503, DriverUnavailable, "cannot answer now"),
        (500, DriverMisbehaved, "failed: the detail (request r-1)"),
    ],
)
def test_a_problem_of_a_server_is_the_error_that_says_what_to_do(status, kind, words):
    error = error_of(problem(status))

    assert type(error) is kind
    assert words in str(error)
    assert "http://host" in str(error)


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_server_that_cannot_answer_now_has_done_nothing(status):
    error = error_of(problem(status))

    assert isinstance(error, DriverUnavailable)
    assert error.done is False


def test_a_token_that_is_not_taken_is_not_asked_for_again():
    error = error_of(problem(401), WITH_TOKEN)

    assert isinstance(error, StoreRefused)
    assert "it is wrong, expired or revoked" in str(error)
    assert "secret" not in str(error)


def test_the_error_of_a_verb_comes_through_as_itself():
    failure = {"type": "Failure", "error": "JobNotFound", "message": "gone", "data": {"job_id": "1"}}

    error = error_of(problem(404, failure=failure))

    assert isinstance(error, JobNotFound)
    assert error.job_id == "1"


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"type": "about:blank", "detail": "gone"}'])
def test_a_problem_that_is_not_ours_is_the_answer_of_a_stranger(body):
    error = error_of(answer_of(404, body, PROBLEM))

    assert isinstance(error, StoreRefused)
    assert "is no TaskHarbor server, or a proxy answers for it: 404 application/problem+json" in str(error)


@pytest.mark.parametrize(
    ("status", "kind", "done"),
    [(502, DriverUnavailable, None), (504, DriverUnavailable, None), (429, DriverUnavailable, False)],
)
def test_what_something_in_between_says_about_the_call(status, kind, done):
    error = error_of(answer_of(status, b"<html>", "text/html; charset=utf-8", None))

    assert type(error) is kind
    assert getattr(error, "done", "unsaid") is done
    assert f"{status} text/html" in str(error)


def test_a_proxy_that_takes_less_than_the_server_has_done_nothing():
    error = error_of(answer_of(413, b"<html>", "text/html", None))

    assert isinstance(error, InvalidArgument)
    assert "refused the size of the call" in str(error)


@pytest.mark.parametrize("status", [201, 204, 404])
def test_only_200_of_our_protocol_is_a_success(status):
    assert not decoding.is_success(answer_of(status, b"", "application/json"))
    assert not decoding.is_success(answer_of(200, b"{}", "application/json", "2"))
    assert not decoding.is_success(answer_of(200, b"{}", "application/json", None))
    assert decoding.is_success(answer_of(200, b"{}", "application/json"))
