"""The document and the checks say the same about the arguments of a driver's verbs.

Each rule is tried at every place where it stands: what is good is taken by both, what is bad by neither.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from taskharbor.web import patterns
from taskharbor.web.app import OPERATIONS
from taskharbor.web.driver_routes import DriverVerbs
from taskharbor.web.driver_schemas import FIELDS
from taskharbor.web.openapi import openapi_document
from tests.unit.web.in_process import Server, in_process

ID = "01900000-0000-7000-8000-000000000001"
LEASE = {"job_id": ID, "token": "t"}
JOB = {"id": ID, "type": "t"}
CLAIM = {"queues": ["q"], "worker_id": "w"}
REPORT = {"report": {"worker_id": "w"}, "ttl": "PT30S"}
SCHEDULE = {"schedule": {"name": "s", "template": {"id": "", "type": "t"}, "every": "PT1S"}}
HEAD_START = {"slower": ["w"], "span": "PT1S"}

Path = tuple[str | int, ...]

# component → the calls it stands in, each with the place: a sound call, in which one field is changed.
PLACES: dict[str, list[tuple[str, dict[str, Any], Path]]] = {
    "NewJob": [
        ("enqueue", {"jobs": [JOB]}, ("jobs", 0)),
        ("put_schedule", SCHEDULE, ("schedule", "template")),
    ],
    "Edit": [("requeue", {"ids": [ID], "edit": {}}, ("edit",))],
    "Claim": [
        ("reserve", {"claim": CLAIM}, ("claim",)),
        ("exchange", {"claim": CLAIM, "settlements": []}, ("claim",)),
    ],
    "RateLimit": [
        ("reserve", {"claim": {**CLAIM, "rate": {"count": 1, "per": "PT1S"}}}, ("claim", "rate")),
        (
            "configure_queue",
            {"settings": {"queue": "limited", "execute_rate": {"count": 1, "per": "PT1S"}}},
            ("settings", "execute_rate"),
        ),
    ],
    "QueueSettings": [("configure_queue", {"settings": {"queue": "q"}}, ("settings",))],
    "Retention": [
        ("configure_queue", {"settings": {"queue": "q", "retention": {}}}, ("settings", "retention")),
    ],
    "Schedule": [("put_schedule", SCHEDULE, ("schedule",))],
    "WorkerReport": [("report_worker", REPORT, ("report",))],
    "Sample": [
        ("report_worker", {**REPORT, "samples": [{"type": "t", "duration": "PT1S"}]}, ("samples", 0)),
    ],
    "HeadStart": [("speculate", {"job_id": ID, "head_start": HEAD_START}, ("head_start",))],
    "Query": [("find", {"query": {}}, ("query",))],
    "Ack": [("settle", {"settlements": [{"type": "Ack", "lease": LEASE}]}, ("settlements", 0))],
    "Lease": [
        ("settle", {"settlements": [{"type": "Ack", "lease": LEASE}]}, ("settlements", 0, "lease")),
        ("extend_leases", {"leases": [LEASE], "lease_for": "PT1S"}, ("leases", 0)),
    ],
    "Retry": [("settle", {"settlements": [{"type": "Retry", "lease": LEASE}]}, ("settlements", 0))],
    "Release": [("settle", {"settlements": [{"type": "Release", "lease": LEASE}]}, ("settlements", 0))],
    "EnqueueRequest": [("enqueue", {"jobs": [JOB]}, ())],
    "ExtendLeasesRequest": [("extend_leases", {"leases": [], "lease_for": "PT1S"}, ())],
    "SettleRequest": [("settle", {"settlements": []}, ())],
    "ExchangeRequest": [("exchange", {"claim": CLAIM, "settlements": []}, ())],
    "ReclaimRequest": [("reclaim", {}, ())],
    "PromoteRequest": [("promote", {}, ())],
    "PruneRequest": [("prune", {}, ())],
    "CancelRequest": [("cancel", {"ids": []}, ())],
    "CancelWaitingRequest": [("cancel_waiting", {"queue": "q", "key": "YQ=="}, ())],
    "RequeueRequest": [("requeue", {"ids": []}, ())],
    "DeleteRequest": [("delete", {"ids": []}, ())],
    "SpeculateRequest": [("speculate", {"job_id": ID}, ())],
    "GetRequest": [("get", {"ids": []}, ())],
    "CountRequest": [("count", {}, ())],
    "ReportWorkerRequest": [("report_worker", REPORT, ())],
    "ForgetWorkerRequest": [("forget_worker", {"worker_id": "w"}, ())],
    "HoldRoleRequest": [("hold_role", {"role": "r", "holder": "w", "ttl": "PT1S"}, ())],
    "ReleaseRoleRequest": [("release_role", {"role": "r", "holder": "w"}, ())],
    "AdvanceScheduleRequest": [("advance_schedule", {"name": "s", "tick": "2026-11-15T00:00:00Z"}, ())],
    "DeleteScheduleRequest": [("delete_schedule", {"name": "s"}, ())],
}


def encoded(size: int) -> str:
    return base64.b64encode(b"x" * size).decode()


Samples = tuple[list[Any], list[Any]]

NAMES: Samples = (["a", "A.b_c-9", "x" * 128], ["", "a b", ".a", "é", "x" * 129, "a\n", 1])
IDS: Samples = ([ID], ["", ID.upper().replace("0", "A"), ID + "\n", ID[:-1], 1])
WORKERS: Samples = (["w", "é ü", "x" * 255, "漢\U0001f600"], ["", "x" * 256, "a\nb", "\x7f", "a\u2028", 1])
BYTES: Samples = (["", "YQ==", "YWI=", "YWJj"], ["a", "YQ", "YQ=", "YQ==YQ==", "Y Q=", "é", "-_==", 1])
KEYS: Samples = (["YQ==", encoded(255)], ["", "YQ", encoded(256), 1])
SPANS: Samples = (
    [
        "P0D",
        "PT1S",
        "+PT1S",
        "p1dt1h1m1.5s",
        "P1.5D",
        "PT1.5H",
        "PT1H1.5M",
        "PT1H1S",
        "P3660D",
        "PT00000000001S",
    ],
    [
        "",
        "P",
        "PT",
        "P1DT",
        "-PT1S",
        "P1Y",
        "P1M",
        "P1W",
        "PT1",
        "1",
        "PT1.5H1M",
        "PT1M1H",
        "P10000D",
        "PT1S\n",
    ],
)
POSITIVE: Samples = (SPANS[0][1:], [*SPANS[1], "P0D", "PT0S", "PT0.000S"])
SHORT_SPANS: Samples = (
    ["P0D", "PT1S", "+PT1.5S", "P1D", "PT24H", "PT1440M", "PT86400S"],
    ["", "P", "-PT1S", "P1W", "P2D", "PT100H", "PT10000M", "PT100000S", "P3660D", 1],
)
ANY_SPANS: Samples = ([*SPANS[0], "-PT1S", "P99999D"], ["", "P1W", "PT1.5H1M", 1])
INSTANTS: Samples = (
    [
        "1970-01-01T00:00:00Z",
        "1969-12-31t23:30:00-23:00",
        "2026-11-15T23:59:59.123456789+0100",
        "2026-11-15 00:00:00z",
    ],
    [
        "",
        "2026-11-15",
        "2026-11-15T00:00:00",
        "2026-13-15T00:00:00Z",
        "2026-11-15T24:00:00Z",
        "1968-12-31T00:00:00Z",
        "2201-01-01T00:00:00Z",
        "2026-11-15T00:00:00Z\n",
        1,
    ],
)
ANY_INSTANTS: Samples = (
    [*INSTANTS[0], "2026-11-15T00:00:00", "0001-01-01T00:00:00Z"],
    ["", "2026-11-15", "2026-13-15T00:00:00Z", 1],
)
ZONES: Samples = (
    ["UTC", "Europe/Berlin", "Etc/GMT+5", "America/Port-au-Prince"],
    ["", "a b", "/UTC", "é", 1],
)
CRONS: Samples = (
    [
        "* * * * *",
        "*/5 0-23/2 1,15,L jan-dec,12 mon-fri",
        "0 0 LW * 5L",
        "0 0 * * Sun#5",
        "30 0 0 1 1 *",
        " @Daily ",
        "@yearly",
        "@annually",
        "@monthly",
        "@weekly",
        "@midnight",
        "@hourly",
    ],
    [
        "",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "* * * * 1#6",
        "*/0 * * * *",
        "@never",
        "a b c d e",
        "* * * * " + "0," * 130 + "0",
        1,
    ],
)

# A rule, as the document has it → values that it takes, and values that it does not.
SAMPLES: list[tuple[dict[str, Any], Samples]] = [
    (patterns.NAME, NAMES),
    (patterns.NAME_OR_ALL, ([*NAMES[0], "*"], [*NAMES[1], "**"])),
    (patterns.ID, IDS),
    (patterns.WORKER_ID, WORKERS),
    (patterns.TEXT, (["", *WORKERS[0]], WORKERS[1][1:])),
    (patterns.SHORT_SPAN, SHORT_SPANS),
    (patterns.SHORT_TIME, (SHORT_SPANS[0][1:], [*SHORT_SPANS[1], "P0D", "PT0S"])),
    (patterns.NO_NUL, (["", "w", "a\nb", "x" * 500], ["\x00", "a\x00b", 1])),
    (patterns.BYTES, BYTES),
    (patterns.KEY, KEYS),
    (patterns.ANY_SPAN, ANY_SPANS),
    (patterns.SPAN, SPANS),
    (patterns.SOME_TIME, POSITIVE),
    (patterns.ANY_INSTANT, ANY_INSTANTS),
    (patterns.INSTANT, INSTANTS),
    (patterns.TIME_ZONE, ZONES),
    (patterns.CRON, CRONS),
    ({"maxProperties": 64}, ([{}, {"a": "b"}], [{str(number): "" for number in range(65)}, {"a": 1}, []])),
    ({"minItems": 1}, ([["ready"]], [[], ["unheard of"]])),
]


def samples_of(rule: dict[str, Any]) -> Samples:
    if "minimum" in rule:
        least, most = rule["minimum"], rule["maximum"]
        return [least, least + 1, most], [least - 1, most + 1, "1", 1.5, True]
    if rule.get("items"):
        return _lists_of(rule)
    if "maxItems" in rule:  # items that have rules of their own
        return [[]], ["", {}]
    return next(samples for known, samples in SAMPLES if known == rule)


def _lists_of(rule: dict[str, Any]) -> Samples:
    items = rule["items"]
    if "properties" in items:  # the id of a job that is no template
        good, bad = samples_of(items["properties"]["id"])
        return [[{**JOB, "id": one}] for one in good], [[{**JOB, "id": one}] for one in bad]
    good, bad = samples_of(items)
    lists, others = [[one] for one in good], [[one] for one in bad]
    (others if "minItems" in rule else lists).append([])
    if "uniqueItems" in rule:
        others.append([good[0], good[0]])
    return lists, others


class Both:
    """The document and the server, asked the same."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.operations = [*OPERATIONS, *DriverVerbs(server.app.service).operations()]
        self.document = openapi_document(self.operations)
        self._validators: dict[str, Any] = {}

    def document_takes(self, verb: str, arguments: Any) -> bool:
        if verb not in self._validators:
            described = self.document["paths"][f"/api/driver/{verb}"]["post"]["requestBody"]
            schema = described["content"]["application/json"]["schema"]
            self._validators[verb] = jsonschema_rs.validator_for(
                {**schema, "components": self.document["components"]}
            )
        return bool(self._validators[verb].is_valid(arguments))

    def server_takes(self, verb: str, arguments: Any) -> bool:
        status, body = self.server.post(verb, msgspec.json.encode(arguments))
        assert status in (200, 422), body
        return status == 200

    def take(self, verb: str, arguments: Any) -> tuple[bool, bool]:
        return self.document_takes(verb, arguments), self.server_takes(verb, arguments)


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    with in_process(max_queues_per_token=10**6, driver_rate_per_second=0) as server:
        yield Both(server)


def changed(call: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    call = deepcopy(call)
    part: Any = call
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    if path[-1] == "cron":
        del part["every"]  # one of the two
    return call


def test_every_rule_speaks_of_a_field_that_there_is(both: Both) -> None:
    schemas = both.document["components"]["schemas"]

    assert {name: set(fields) - set(schemas[name]["properties"]) for name, fields in FIELDS.items()} == {
        name: set() for name in FIELDS
    }
    assert set(PLACES) == set(FIELDS) - {"WakeupsRequest"}, "whose answer is a stream"


@pytest.mark.parametrize("component", sorted(PLACES))
def test_the_document_and_the_checks_take_the_same(both: Both, component: str) -> None:
    for verb, call, slot in PLACES[component]:
        assert both.take(verb, call) == (True, True), verb
        for field, rule in FIELDS[component].items():
            good, bad = samples_of(rule)
            for value, is_good in [*((one, True) for one in good), *((one, False) for one in bad)]:
                taken = both.take(verb, changed(call, (*slot, field), value))
                assert taken == (is_good, is_good), (verb, field, value)


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("enqueue", {"jobs": [{**JOB, "run_at": "2026-11-15T00:00:00Z", "delay": "PT1S"}]}),
        ("enqueue", {"jobs": [{**JOB, "update": {}}]}),
        ("settle", {"settlements": [
            {"type": "Retry", "lease": LEASE, "run_at": "2026-11-15T00:00:00Z", "delay": "PT1S"}
        ]}),
        ("requeue", {"ids": [ID], "run_at": "2026-11-15T00:00:00Z", "delay": "PT1S"}),
        ("put_schedule", {"schedule": {**SCHEDULE["schedule"], "cron": "* * * * *"}}),
        ("put_schedule", {"schedule": {**SCHEDULE["schedule"], "every": None}}),
        ("put_schedule", {"schedule": {**SCHEDULE["schedule"], "every": None, "cron": None}}),
        ("get", {"ids": [ID] * 10_001}),
        ("reserve", {"claim": {**CLAIM, "queues": ["q", "q"]}}),
        ("reserve", {}),
        ("reserve", {"claim": CLAIM, "unknown": 1}),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_taken_by_neither(both: Both, verb: str, arguments: Any) -> None:
    assert both.take(verb, arguments) == (False, False)


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("enqueue", {"jobs": [{**JOB, "run_at": None, "delay": "PT1S", "update": None}]}),
        ("enqueue", {"jobs": [{**JOB, "key": "YQ==", "update": {"run_at": "if_later"}}]}),
        ("put_schedule", {"schedule": {**SCHEDULE["schedule"], "cron": None}}),
        ("advance_schedule", {"name": "s", "tick": "2200-01-01T00:00:00Z"}),
        ("get", {"ids": [], "now": None}),
    ],
)
def test_what_is_left_out_may_be_said_as_null(both: Both, verb: str, arguments: Any) -> None:
    assert both.take(verb, arguments) == (True, True)


def test_a_server_that_keeps_its_own_time_says_so_in_the_document(both: Both) -> None:
    assert not both.document_takes("get", {"ids": [], "now": "2026-11-15T00:00:00Z"})
    status, _ = both.server.post("get", b'{"ids": [], "now": "2026-11-15T00:00:00Z"}')
    assert status == 403

    for_tests = openapi_document(both.operations, accepts_now=True)
    said = for_tests["components"]["schemas"]["GetRequest"]["properties"]["now"]
    assert jsonschema_rs.is_valid(said, "2026-11-15T00:00:00Z")
    assert jsonschema_rs.is_valid(said, None)
