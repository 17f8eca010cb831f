"""A store that does not answer: one line when it goes, few while it is away, one when it is back."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.outage import Outage
from taskharbor.errors import DriverUnavailable
from taskharbor.testing.clock import SimulatedClock

GONE = DriverUnavailable("no connection")


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def outage(clock):
    return Outage(clock)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


async def away(outage, clock, seconds, step=0.05):
    """Many callers that ask again and again."""
    for _ in range(round(seconds / step)):
        outage.failed("reserve", GONE)
        outage.failed("extend_leases", GONE)
        await clock.pass_time(timedelta(seconds=step))


async def test_an_outage_is_logged_when_it_begins_and_when_it_ends(outage, clock, lines):
    await away(outage, clock, 5)
    outage.answered()
    outage.answered()

    assert lines() == [
        "the store does not answer (reserve): no connection; work goes on when it is back",
        "the store answers again after 5.0 s; 200 calls had failed",
    ]


async def test_a_long_one_is_reported_now_and_then(outage, clock, lines):
    await away(outage, clock, 3600, step=1.0)

    first, *reminders = lines()
    assert "does not answer" in first
    assert [line.partition(",")[0] for line in reminders[:3]] == [
        "the store has not answered for 10 s",
        "the store has not answered for 60 s",
        "the store has not answered for 360 s",
    ]
    assert len(reminders) == 13
    assert "3 in a row" not in "".join(reminders)


async def test_a_store_that_comes_and_goes_is_reported_once(outage, clock, lines):
    for _ in range(100):
        await away(outage, clock, 0.5, step=0.25)
        outage.answered()

    assert len(lines()) == 2


async def test_one_that_goes_again_and_stays_away_is_reported(outage, clock, lines):
    await away(outage, clock, 1)
    outage.answered()
    await away(outage, clock, 20)
    outage.answered()

    assert ["has not answered for 10 s" in line for line in lines()] == [False, False, True, False]
    assert "answers again after 20.0 s" in lines()[-1]


def test_an_answer_without_an_outage_says_nothing(outage, lines):
    outage.answered()

    assert lines() == []
    assert not outage.is_away


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "sqlite:///never-opened.db",
        "postgresql://localhost/x",
        "redis://localhost",
        "redis+cluster://localhost",
        "http://localhost",
    ],
)
def test_all_handles_of_a_store_share_wakeups(url):
    driver = connect(url)

    assert driver.another().outage is driver.outage
    assert driver.another().another().outage is driver.outage
    assert connect(url).outage is not driver.outage
