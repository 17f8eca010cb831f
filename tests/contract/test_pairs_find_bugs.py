"""A test of the tests: a store without one of its checks or locks does not pass the pairs of verbs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import psycopg
import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.loading import connect
from taskharbor.drivers.postgres.address import address_of
from taskharbor.drivers.postgres.schema import FUNCTIONS, filled
from taskharbor.testing.servers import postgres_url, run_name
from taskharbor.testing.servers.postgres import migrate_blocking
from tests.contract.pairs.race import Race
from tests.contract.pairs.racers import Racers, Trouble
from tests.contract.pairs.verbs import Round, all_rounds

pytestmark = pytest.mark.more("it tests the pairs of verbs, not the product")
TIMES = 40
"""How often the rounds are run at the most: a race that needs luck is found by trying."""


class Bug(NamedTuple):
    """One text of a Postgres function in place of another, and the verbs that must notice."""

    function: str
    right: str
    wrong: str
    one: str
    other: str
    starts: tuple[str, ...]
    more: tuple[tuple[str, str], ...] = ()
    """Other texts to replace: a second check that would catch the mistake."""


BUGS = {
    "an ack asks for no token": Bug(
        "settle_others",
        "s.token = p_tokens[coalesce(p_leases[i.ord], 1)] and s.ends_at > p_at\n              and s.worker = "
        "coalesce(p_workers[coalesce(p_leases[i.ord], 1)], s.worker)",
        "s.ends_at > p_at",
        "ack",
        "extend",
        ("claimed_again",),
    ),
    "a claim does not lock": Bug(
        "exchange",
        "order by w.eligible_at, w.seq limit v_room for update skip locked) w;",
        "order by w.eligible_at, w.seq limit v_room) w;",
        "reserve",
        "reserve",
        ("ready", "keyed"),
        more=(("if v_usual > 0 then", "if true then"),),
    ),
    "a retry does not lock before it looks for a cancel": Bug(
        "settle_others",
        "and k.state = 3 for no key update skip locked offset 0) s",
        "and k.state = 3 offset 0) s",
        "retry",
        "cancel",
        ("running",),
    ),
    "an enqueue does not wait for a claim": Bug(
        "enqueue",
        "and w.eligible_at = s.eligible_at and w.seq = s.seq for update offset 0) w;",
        "and w.eligible_at = s.eligible_at and w.seq = s.seq offset 0) w;",
        "enqueue",
        "reserve",
        ("keyed", "due"),
    ),
    "a cancel does not look again": Bug(
        "lock_in_order",
        "raise exception 'a job has moved' using errcode = 'TH001';",
        "null;",
        "cancel",
        "release",
        ("blocked", "absorbed"),
    ),
}


@pytest.fixture(scope="module")
def racers() -> Iterator[Racers]:
    with Racers() as racers:
        yield racers


@pytest.fixture(scope="module")
def own_store() -> Iterator[str]:
    """A store whose functions the tests may break."""
    url = f"{postgres_url().partition('?')[0]}?schema=broken_{run_name()}"
    migrate_blocking(url)
    yield url
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"drop schema {address_of(url).identifier} cascade".encode())


@pytest.fixture
def broken_store(own_store: str, bug: Bug) -> Iterator[str]:
    right = wrong = FUNCTIONS.texts[bug.function]
    for was, becomes in ((bug.right, bug.wrong), *bug.more):
        assert right.count(was) == 1, "the function has changed: plant the bug in its new text"
        wrong = wrong.replace(was, becomes)
    _put(own_store, wrong)
    yield own_store
    _put(own_store, right)


def _put(url: str, text: str) -> None:
    address = address_of(url)
    with psycopg.connect(address.dsn, autocommit=True) as connection:
        connection.execute(filled(text, address).encode())


@pytest.mark.timeout(180)
@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
async def test_a_planted_bug_is_found(bug: Bug, broken_store: str, racers: Racers) -> None:
    async with connect(broken_store) as driver:
        racers.open(broken_store)
        try:
            with pytest.raises((AssertionError, Trouble)) as found:
                await Race(driver, racers, is_given=False).run(rounds_of(bug, driver) * TIMES)
        finally:
            racers.close()

    assert getattr(found.value, "__notes__", []), "found in the end only"


def rounds_of(bug: Bug, driver: Driver) -> list[Round]:
    return [
        one
        for one in all_rounds(driver.capabilities, is_given=False)
        if {one.one, one.other} == {bug.one, bug.other} and one.start.name in bug.starts
    ]
