"""Long input of every kind: what the server does with it grows with its length, and no faster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from taskharbor.cli.parameters import parse_count, parse_rate, parse_size
from taskharbor.drivers.cursor import place_of
from taskharbor.drivers.messages import Query
from taskharbor.model.checks import check_id, check_name, check_worker_id
from taskharbor.model.clock import EPOCH, SystemClock
from taskharbor.model.cron import check_cron, zone
from taskharbor.model.duration import duration
from taskharbor.model.secrets import masked, redacted
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
CALLS: dict[str, Callable[[int], tuple[str, object]]] = {
    "get": lambda n: ("get", {"ids": IDS[:n]}),
    "get the same": lambda n: ("get", {"ids": IDS[:1] * n}),
    "get without payloads": lambda n: ("get", {"ids": IDS[:n], "payloads": False}),
    "cancel": lambda n: ("cancel", {"ids": IDS[:n]}),
    "delete": lambda n: ("delete", {"ids": IDS[:n]}),
    "requeue": lambda n: ("requeue", {"ids": IDS[:n]}),
    "count": lambda n: ("count", {"queues": [f"q{number}" for number in range(n)]}),
    "reserve": lambda n: (
        "reserve",
        {"claim": {"queues": [f"q{number}" for number in range(n)], "worker_id": "w", "limit": 100}},
    ),
    "extend": lambda n: (
        "extend_leases",
        {"leases": [{"job_id": job_id, "token": "0" * 32} for job_id in IDS[:n]], "lease_for": "PT30S"},
    ),
    "an unknown field": lambda n: ("find", {"query": {"k" * n: 1}}),
    "a long cursor": lambda n: ("find", {"query": {"cursor": "a" * n}}),
}


@pytest.mark.parametrize("kind", CALLS)
def test_long_calls_of_verbs_take_time_in_proportion(server: Server, kind: str) -> None:
    def call(made: tuple[str, bytes]) -> None:
        server.post(*made)

    def make(n: int) -> tuple[str, bytes]:
        verb, arguments = CALLS[kind](n)
        return verb, json.dumps(arguments).encode()

    assert_linear(call, make, 512)


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
