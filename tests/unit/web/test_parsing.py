"""Bodies and query strings: what is taken, what is refused, and with which words."""

import msgspec
import pytest

from taskharbor.web.api.schemas import JobIn, JobsQuery
from taskharbor.web.parsing import read_json, read_query
from taskharbor.web.problems import Problem
from tests.unit.growth import assert_linear


def problem(body: bytes) -> Problem:
    with pytest.raises(Problem) as caught:
        read_json(body, JobIn)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"x","payload":{"b":1,"a":[1,2.5]}}',
        b' { "type" : "x" ,\n "payload" : { "b" : 1, "a" : [ 1, 2.50 ] } } ',
        b'{"type":"\\u0078","payload":{"b":1,"a":[1,25e-1]}}',
    ],
)
def test_a_payload_is_kept_the_one_obvious_way_however_it_was_written(body: bytes) -> None:
    read = read_json(body, JobIn)

    assert (read.type, bytes(read.payload)) == ("x", b'{"b":1,"a":[1,2.5]}')


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "malformed"),
        (b"[", "malformed"),
        (b"\xff", "malformed"),
        (b"[]", "validation"),
        (b'{"type":NaN}', "validation"),
        (b'{"type":"x","type":"x"}', "validation"),
        (b'{"type":"x","payload":"\\ud800"}', "validation"),
        (b"[" * 100_000, "malformed"),
    ],
)
def test_what_is_no_json_is_kept_apart_from_json_that_does_not_fit(body: bytes, kind: str) -> None:
    assert problem(body).kind == kind


def test_a_misfit_names_the_place() -> None:
    assert problem(b'{"type":"x","priority":1000}').fields == [
        {"path": "$.priority", "message": "Expected `int` <= 100"}
    ]
    assert "`colour`" in problem(b'{"type":"x","colour":1}').detail
    assert "2026-12-01T09:00:00Z" in problem(b'{"type":"x","run_at":5}').detail


def test_a_query_string_is_read_by_its_types() -> None:
    read = read_query(b"limit=7&queue=null&sort=seq&worker_id=a%20b", JobsQuery)

    assert (read.limit, read.queue, read.sort, read.worker_id) == (7, "null", "seq", "a b")


@pytest.mark.parametrize(
    "text", [b"limit=7&limit=8", b"x=1", b"queue=%0a", b"a", b"%zz", b"queue=%ff", b"limit=\xff"]
)
def test_a_query_string_that_is_unclear_is_refused(text: bytes) -> None:
    with pytest.raises(Problem) as caught:
        read_query(text, JobsQuery)

    assert caught.value.kind == "validation"


def test_integers_of_any_size_survive() -> None:
    read = read_json(b'{"type":"x","payload":%d}' % 2**70, JobIn)

    assert msgspec.json.decode(bytes(read.payload)) == 2**70


# ------------------------------------------------------------------ work in proportion to length


def some_keys(count: int) -> str:
    return ",".join(f'"k{number}":1' for number in range(count))


LONG_BODIES = {
    "the last two keys are equal": lambda n: f'{{"payload":{{{some_keys(n)},"a":1,"a":2}}}}',
    "many pairs of keys": lambda n: f'{{"payload":{{{some_keys(n)},{some_keys(n)}}}}}',
    "keys apart": lambda n: f'{{ "type":"x","payload":{{{some_keys(n)}}}}}',
    "lists": lambda n: f'{{ "type":"x","payload":[{",".join(["[]"] * n)}]}}',
    "objects": lambda n: f'{{ "type":"x","payload":[{",".join(["{}"] * n)}]}}',
    "deep": lambda n: "[" * n,
    "escapes": lambda n: '{ "type":"' + "\\u0078" * n + '"}',
    "one long key twice": lambda n: '{"' + "k" * n + '":1,"' + "k" * n + '":1}',
    "digits": lambda n: '{"type":' + "1" * n + "}",
    "a string without an end": lambda n: '{"type":"' + "x" * n,
    "surrogates": lambda n: '{"type":"' + "\\ud800" * n + '"}',
}


@pytest.mark.parametrize("kind", LONG_BODIES)
def test_long_bodies_take_time_in_proportion(kind: str) -> None:
    assert_linear(lambda body: read_json(body, JobIn), lambda n: LONG_BODIES[kind](n).encode())


LONG_QUERIES = {
    "one value": lambda n: "worker_id=" + "a" * n,
    "many fields": lambda n: "&".join(f"a{number}=1" for number in range(n)),
    "ampersands": lambda n: "&" * n,
    "percents": lambda n: "worker_id=" + "%61" * n,
    "states": lambda n: "state=" + "ready," * n,
    "a digit": lambda n: "limit=" + "1" * n,
}


@pytest.mark.parametrize("kind", LONG_QUERIES)
def test_long_query_strings_take_time_in_proportion(kind: str) -> None:
    assert_linear(lambda text: read_query(text, JobsQuery), lambda n: LONG_QUERIES[kind](n).encode())
