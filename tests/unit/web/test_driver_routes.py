"""Whatever is sent to the driver's routes, the server answers properly."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskharbor.drivers import wire
from taskharbor.drivers.messages import Claim
from taskharbor.errors import SchemaOutOfDate
from taskharbor.model.job import Lease, NewJob
from taskharbor.model.presence import WorkerReport
from taskharbor.model.queue import QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Ack, Fail, Retry
from taskharbor.testing.conformance.kit import new_job
from taskharbor.web.problems import problem_of
from tests.unit.web.in_process import Server, in_process

CALLED = sorted(set(wire.VERBS) - {"wakeups"})  # a stream: it has no end
NOW = datetime(2026, 11, 15, tzinfo=UTC)

TIMES = ("2026-11-15T00:00:00Z", "2026-11-15T00:00:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
SPANS = ("PT30S", "-PT1S", "P99999D")
NAMES = ("", "default", "*", "a b", "\0", "é" * 200, "x", "any", "AAAA", "====", new_job().id)
WORDS = st.sampled_from((*NAMES, *SPANS, *TIMES))
NUMBERS = st.sampled_from([-1, 0, 1, 100, 101, 10_001, 2**31, 2**63 - 1, 2**64, 10**30, 0.5, 1e308])
VALUES = st.recursive(
    st.none() | st.booleans() | WORDS | NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)

# One sound call of each verb that takes more than words and numbers, to be spoilt in one place.
LEASE = Lease(new_job().id, "0" * 32, 1, NOW, "w", "default")
SOUND: dict[str, dict[str, Any]] = {
    "enqueue": {"jobs": [NewJob(id=new_job().id, type="t", payload=b"x", key=b"k", run_at=NOW)]},
    "reserve": {"claim": Claim(queues=("default",), worker_id="w")},
    "exchange": {"settlements": [Ack(LEASE, b"x")], "claim": Claim(queues=("default",), worker_id="w")},
    "settle": {"settlements": [Ack(LEASE), Fail(LEASE, "no"), Retry(LEASE, run_at=NOW)]},
    "extend_leases": {"leases": [LEASE], "lease_for": "PT30S", "progress": {LEASE.job_id: {"fraction": 0.5}}},
    "requeue": {"ids": [LEASE.job_id], "delay": "PT1S", "edit": {"priority": 5}},
    "configure_queue": {"settings": QueueSettings(queue="default", max_running=3)},
    "report_worker": {"report": WorkerReport(worker_id="w"), "ttl": "PT30S", "samples": []},
    "put_schedule": {"schedule": Schedule(name="s", template=NewJob(id="", type="t"), cron="@daily")},
    "find": {"query": {"queue": "default", "states": ["ready"], "limit": 5, "cursor": None}},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with in_process(accepts_now=True) as server:
        yield server


def spoilt(value: Any, path: list[int], by: Any) -> Any:
    """The same value with one place in it replaced; the path chooses the place."""
    if not path or not isinstance(value, dict | list) or not value:
        return by
    keys = sorted(value) if isinstance(value, dict) else range(len(value))
    chosen = list(keys)[path[0] % len(value)]
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[chosen] = spoilt(value[chosen], path[1:], by)
    return changed


@pytest.mark.parametrize("verb", CALLED)
def test_a_call_that_is_all_wrong_is_refused_and_never_an_accident(server: Server, verb: str) -> None:
    fields = sorted(wire.VERBS[verb].request.__struct_fields__)

    @settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(st.sampled_from([*fields, "unknown"]), VALUES, max_size=4) | VALUES)
    def ask(arguments: Any) -> None:
        body = msgspec.json.encode(arguments)
        status, answer = server.post(verb, body)
        assert status < 500, (arguments, answer)

    ask()


@pytest.mark.parametrize("verb", sorted(SOUND))
def test_a_call_with_one_thing_wrong_is_refused_and_never_an_accident(server: Server, verb: str) -> None:
    sound = msgspec.json.decode(wire.encode(SOUND[verb]))

    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.integers(0, 40), min_size=1, max_size=5), VALUES)
    def ask(path: list[int], by: Any) -> None:
        arguments = spoilt(sound, path, by)
        status, answer = server.post(verb, msgspec.json.encode(arguments))
        assert status < 500, (arguments, answer)

    assert server.post(verb, wire.encode(SOUND[verb]))[0] == 200
    ask()


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"ids": ["\\ud800"]}', b"[" * 100_000, b'{"ids": NaN}'],
    ids=["nothing", "a half", "null", "a list", "no UTF-8", "half a character", "too deep", "NaN"],
)
def test_what_is_no_call_is_refused(server: Server, body: bytes) -> None:
    status, answer = server.post("get", body)

    assert status in (400, 422), answer


def test_a_verb_that_nobody_knows_is_not_found(server: Server) -> None:
    assert server.post("explode", b"{}")[0] == 404


@pytest.mark.parametrize(
    "arguments", [{"queues": ["a b"], "worker_id": "w"}, {"queues": [], "worker_id": ""}, {"queues": []}, {}]
)
def test_a_stream_of_hints_for_nobody_is_refused_before_it_begins(
    server: Server, arguments: dict[str, Any]
) -> None:
    assert server.post("wakeups", msgspec.json.encode(arguments))[0] == 422


@pytest.mark.parametrize(
    "header",
    [
        (b"taskharbor-call", b""),
        (b"taskharbor-call", b"x" * 201),
        (b"taskharbor-call", b"a b"),
        (b"taskharbor-repeat", b"boot"),
        (b"taskharbor-repeat", b"boot nan"),
        (b"taskharbor-repeat", b"boot -1"),
        (b"taskharbor-protocol", b"2"),
    ],
)
def test_a_header_that_cannot_be_meant_is_refused(server: Server, header: tuple[bytes, bytes]) -> None:
    assert server.post("promote", b"{}", header)[0] == 422


# ------------------------------------------------------------------ what is too much, or sent twice


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("get", b'{"ids":[],"ids":[]}'),
        ("count", b'{"queues":null, "queues":null}'),
        ("enqueue", b'{"jobs":[{"id":"' + b"0" * 36 + b'","type":"a","type":"b"}]}'),
        ("count", b'{"queues":null,"queu\\u0065s":null}'),
    ],
)
def test_a_key_given_twice_is_refused(verb: str, body: bytes) -> None:
    with in_process() as server:
        status, answer = server.post(verb, body)

    assert status == 422
    assert b"twice" in answer or b"Expected" in answer


@pytest.mark.parametrize(
    ("verb", "size", "is_taken"),
    [
        ("hello", 64 * 1024, False),
        ("queues", 64 * 1024, False),
        ("find", 64 * 1024, False),
        ("get", 500 * 1024, True),
        ("get", 1024 * 1024, False),
        ("cancel", 1024 * 1024, False),
        ("reserve", 2 * 1024 * 1024, False),
        ("requeue", 3 * 1024 * 1024, False),
        ("enqueue", 15 * 1024 * 1024, True),
        ("enqueue", 17 * 1024 * 1024, False),
    ],
)
def test_only_verbs_that_bring_jobs_have_large_bodies(verb: str, size: int, is_taken: bool) -> None:
    with in_process() as server:
        status, _ = server.post(verb, b"{" + b" " * size)

    assert status == (400 if is_taken else 413)


def test_a_store_without_its_tables_is_not_the_callers_fault() -> None:
    problem = problem_of(SchemaOutOfDate("the schema of this store does not fit this code"))

    assert (problem.kind, problem.headers["Retry-After"]) == ("store-unavailable", "1")
