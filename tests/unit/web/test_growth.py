"""Long input of every kind: what the server does with it grows with its length, and no faster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from taskharbor.cli.parameters import parse_count, parse_rate, parse_size
from taskharbor.drivers.cursor import place_of
from taskharbor.drivers.messages import Claim, Query, Resolution
from taskharbor.drivers.wire import VERBS, encode
from taskharbor.model.checks import check_id, check_name, check_worker_id
from taskharbor.model.clock import EPOCH, SystemClock
from taskharbor.model.cron import check_cron, zone
from taskharbor.model.duration import duration
from taskharbor.model.job import Lease, NewJob, Note
from taskharbor.model.logbook import LogEntry, LogKey
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.model.queue import QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.model.secrets import masked, redacted
from taskharbor.model.settlement import Ack
from taskharbor.settings.parsing import size
from taskharbor.web.auth import Principal
from taskharbor.web.board import Board
from taskharbor.web.feed import Feed, FeedSubscription
from tests.unit.growth import assert_linear
from tests.unit.web.in_process import Server, in_process

TEXTS: dict[str, Callable[[str], object]] = {
    "name": lambda text: check_name(text, "queue"),
    "id": check_id,
    "worker id": check_worker_id,
    "duration": duration,
    "cron": lambda text: check_cron(text, EPOCH),
    "time zone": zone,
    "size of a setting": size,
    "size of a flag": parse_size,
    "count of a flag": parse_count,
    "rate of a flag": parse_rate,
    "cursor": lambda text: place_of(Query(cursor=text)),
    "store URL": lambda text: masked(f"postgresql://{text}?password={text}"),
}
SHAPES: dict[str, Callable[[int], str]] = {
    "letters": lambda n: "a" * n,
    "digits": lambda n: "1" * n,
    "numbers and units": lambda n: "1h" * n,
    "points": lambda n: "1." * n,
    "commas": lambda n: "1," * n,
    "spaces": lambda n: "1" + " " * n + "x",
    "slashes": lambda n: "*/1 " * n,
    "at signs": lambda n: "a:b@" * n,
    "parameters": lambda n: "&token=" * n,
    "brackets": lambda n: "[" * n,
}


@pytest.mark.parametrize("kind", TEXTS)
def test_long_texts_take_time_in_proportion(kind: str) -> None:
    for shape in SHAPES.values():
        assert_linear(TEXTS[kind], shape)


def test_hiding_secrets_takes_time_in_proportion() -> None:
    assert_linear(redacted, lambda n: {f"name-{number}": [{"password": "x"}] for number in range(n)})
    assert_linear(redacted, lambda n: {"k" * n: "x"})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with in_process() as found:
        yield found


IDS = [f"{number:08x}-0000-7000-8000-000000000000" for number in range(8192)]
LEASES = [Lease(job_id, "0" * 32) for job_id in IDS]
SPAN = timedelta(seconds=30)
AT = datetime(2026, 1, 1, tzinfo=UTC)
SCHEDULE = Schedule(name="nightly", template=NewJob(id=IDS[0], type="x"), every=SPAN)


def names(n: int) -> tuple[str, ...]:
    return tuple(f"q{number}" for number in range(n))


def claim(n: int) -> Claim:
    return Claim(queues=names(n), worker_id="w", limit=100)


def report(n: int) -> WorkerReport:
    return WorkerReport(worker_id="w", queues=names(n), types=names(n), running=tuple(IDS[:n]))


def cells(n: int) -> list[LogEntry]:
    return [LogEntry(book="kit", at=AT, by=name, data=b"cell", until=AT + SPAN) for name in names(n)]


# The verb, and arguments of which there are n.
CALLS: dict[str, Callable[[int], tuple[str, dict[str, object]]]] = {
    "get": lambda n: ("get", {"ids": IDS[:n]}),
    "get the same": lambda n: ("get", {"ids": IDS[:1] * n}),
    "get without payloads": lambda n: ("get", {"ids": IDS[:n], "payloads": False}),
    "count": lambda n: ("count", {"queues": names(n)}),
    "an unknown field": lambda n: ("find", {"query": {"k" * n: 1}}),
    "a long cursor": lambda n: ("find", {"query": {"cursor": "a" * n}}),
    "enqueue": lambda n: ("enqueue", {"jobs": [NewJob(id=job_id, type="x") for job_id in IDS[:n]]}),
    "enqueue keys": lambda n: ("enqueue", {"jobs": [keyed(number) for number in range(n)]}),
    "ring": lambda n: ("ring", {"queues": names(n)}),
    "reserve": lambda n: ("reserve", {"claim": claim(n)}),
    "extend": lambda n: ("extend_leases", {"leases": LEASES[:n], "lease_for": SPAN}),
    "settle": lambda n: ("settle", {"settlements": [Ack(lease) for lease in LEASES[:n]]}),
    "exchange": lambda n: (
        "exchange",
        {"settlements": [Ack(lease) for lease in LEASES[:n]], "claim": claim(n)},
    ),
    "note": lambda n: ("note", {"notes": [Note("step", b"data", lease=lease) for lease in LEASES[:n]]}),
    "resolve": lambda n: ("resolve", {"items": [Resolution(id=job_id) for job_id in IDS[:n]]}),
    "cancel": lambda n: ("cancel", {"ids": IDS[:n]}),
    "cancel of a key": lambda n: ("cancel_waiting", {"queue": "q", "key": b"k" * n}),
    "requeue": lambda n: ("requeue", {"ids": IDS[:n]}),
    "delete": lambda n: ("delete", {"ids": IDS[:n]}),
    "settings": lambda n: ("configure_queue", {"settings": QueueSettings(queue="q" * n, paused=False)}),
    "second run": lambda n: ("speculate", {"job_id": "a" * n}),
    "report": lambda n: ("report_worker", {"report": report(n), "ttl": SPAN}),
    "samples": lambda n: (
        "report_worker",
        {"report": report(1), "samples": [Sample(name, SPAN) for name in names(n)], "ttl": SPAN},
    ),
    "worker": lambda n: ("forget_worker", {"worker_id": "w" * n}),
    "role": lambda n: ("hold_role", {"role": "leader", "holder": "w" * n, "ttl": SPAN}),
    "role given up": lambda n: ("release_role", {"role": "leader", "holder": "w" * n}),
    "schedule": lambda n: ("put_schedule", {"schedule": replace(SCHEDULE, template=payload_of(n))}),
    "tick": lambda n: ("advance_schedule", {"name": "n" * n, "tick": AT}),
    "schedule deleted": lambda n: ("delete_schedule", {"name": "n" * n}),
    "log": lambda n: ("write_log", {"entries": cells(n)}),
    "log replaced": lambda n: (
        "write_log",
        {"entries": cells(1), "instead_of": [LogKey("kit", AT, name) for name in names(n)]},
    ),
}
TAKES_NOTHING_LONG = {"migrate", "reclaim", "promote", "prune"}  # no arguments, or a number
WRONG = {"a long cursor", "second run"}


def keyed(number: int) -> NewJob:
    return NewJob(id=IDS[-1 - number], type="x", key=f"key-{number}".encode())


def payload_of(n: int) -> NewJob:
    return NewJob(id=IDS[0], type="x", payload=json.dumps(list(range(n))).encode())


def body_of(kind: str, n: int) -> tuple[str, bytes]:
    verb, arguments = CALLS[kind](n)
    return verb, encode(arguments)


def test_every_verb_that_changes_something_is_called_with_much() -> None:
    called = {make(1)[0] for make in CALLS.values()}

    assert {name for name, verb in VERBS.items() if verb.is_change} - called == TAKES_NOTHING_LONG


@pytest.mark.parametrize("kind", CALLS)
def test_calls_of_such_shapes_are_understood(server: Server, kind: str) -> None:
    status, answer = server.post(*body_of(kind, 2))

    assert (status == 200) == (kind not in WRONG), answer


@pytest.mark.parametrize("kind", CALLS)
def test_long_calls_of_verbs_take_time_in_proportion(server: Server, kind: str) -> None:
    assert_linear(lambda made: server.post(*made), lambda n: body_of(kind, n), 512)


# ------------------------------------------------------------------ where a listener left off


@pytest.mark.parametrize("number", ["9" * 5000, "\xb2", "-1", "", "1e3", "0" * 5000])
async def test_a_last_event_id_that_is_no_number_begins_with_a_snapshot(number: str) -> None:
    async def driver():
        from taskharbor.drivers import connect

        found = connect("memory://")
        await found.open()
        return found

    clock = SystemClock()
    feed = Feed(Board(driver, clock, lambda: None), driver, clock, lambda: None, "epoch")
    listener = FeedSubscription(Principal(name="a", role="viewer"), frozenset(), frozenset())
    try:
        await feed.subscribe(listener, f"epoch-{number}")
        assert listener.unread.get_nowait().kind == "snapshot"
    finally:
        feed.unsubscribe(listener)
