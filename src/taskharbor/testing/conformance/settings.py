"""configure_queue: what is left out stays, None takes away, and the answer says what holds now."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.errors import InvalidArgument
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE, QueueRules, QueueSettings, Retention
from taskharbor.testing.conformance.kit import (
    HOUR,
    MICROSECOND,
    MINUTE,
    OTHER_QUEUE,
    QUEUE,
    START,
    enqueue_one,
)

ALL_SET: dict[str, Any] = {
    "paused": True,
    "max_running": 7,
    "enqueue_rate": RateLimit(1, MICROSECOND),
    "execute_rate": RateLimit(1_000_000, HOUR),
    "fail_queue": "kit-dead",
    "retention": Retention(completed=None, failed=0 * HOUR, cancelled=MINUTE),
}
TAKEN_AWAY: dict[str, Any] = {name: False if name == "paused" else None for name in ALL_SET}


async def configure(driver: Driver, queue: str = QUEUE, **fields: Any) -> QueueRules:
    return await driver.configure_queue(QueueSettings(queue=queue, **fields), now=START)


async def rules(driver: Driver, queue: str = QUEUE) -> QueueRules | None:
    """What `queues` returns for one queue."""
    return next((info.rules for info in await driver.queues(now=START) if info.queue == queue), None)


@pytest.mark.parametrize("queue", [QUEUE, EVERY_QUEUE])
async def test_everything_can_be_set_at_once(driver: Driver, queue: str) -> None:
    """W06: and comes back as it was set."""
    answer = await configure(driver, queue, **ALL_SET)

    assert answer == QueueRules(**ALL_SET)
    assert await rules(driver, queue) == answer


@pytest.mark.parametrize("name", ALL_SET)
async def test_a_field_that_is_left_out_stays(driver: Driver, name: str) -> None:
    """W06: setting one touches no other."""
    others = {other: value for other, value in ALL_SET.items() if other != name}
    await configure(driver, **others)

    answer = await configure(driver, **{name: ALL_SET[name]})

    assert answer == await rules(driver) == QueueRules(**ALL_SET)


@pytest.mark.parametrize("name", ALL_SET)
async def test_a_field_can_be_taken_away_alone(driver: Driver, name: str) -> None:
    """W08: None is not the same as left out."""
    await configure(driver, **ALL_SET)

    answer = await configure(driver, **{name: TAKEN_AWAY[name]})

    expected = replace(QueueRules(**ALL_SET), **{name: TAKEN_AWAY[name]})
    assert answer == await rules(driver) == expected


async def test_saying_nothing_changes_nothing(driver: Driver) -> None:
    """W06: it only answers."""
    await configure(driver, **ALL_SET)

    assert await configure(driver) == QueueRules(**ALL_SET)


async def test_zero_running_is_not_unlimited(driver: Driver) -> None:
    """W07: kept apart from None."""
    assert (await configure(driver, max_running=0)).max_running == 0
    assert (await configure(driver, max_running=None)).max_running is None


async def test_queue_and_harbor_have_settings_of_their_own(driver: Driver) -> None:
    """W09: neither answers for the other, and no other queue changes."""
    await enqueue_one(driver, queue=OTHER_QUEUE)
    await configure(driver, EVERY_QUEUE, max_running=5)

    assert await configure(driver, max_running=2) == QueueRules(max_running=2)
    assert await rules(driver, EVERY_QUEUE) == QueueRules(max_running=5)
    assert await rules(driver, OTHER_QUEUE) == QueueRules()


async def test_a_queue_with_settings_and_no_jobs_is_listed(driver: Driver) -> None:
    """R14: it exists because it was set."""
    await configure(driver, paused=True)

    assert [info.queue for info in await driver.queues(now=START)] == [QUEUE]


async def test_every_handle_reads_the_same_settings(driver: Driver) -> None:
    """W06: they are stored, not remembered."""
    async with driver.another() as second:
        await configure(second, **ALL_SET)

    assert await rules(driver) == QueueRules(**ALL_SET)
    assert await configure(driver, max_running=1) == replace(QueueRules(**ALL_SET), max_running=1)


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": "a b"},
        {"paused": None},
        {"max_running": -1},
        {"enqueue_rate": RateLimit(0, MINUTE)},
        {"execute_rate": RateLimit(1, 0 * MINUTE)},
        {"fail_queue": EVERY_QUEUE},
        {"retention": Retention(failed=-MINUTE)},
    ],
    ids=str,
)
async def test_settings_that_make_no_sense_are_refused(driver: Driver, fields: dict[str, Any]) -> None:
    """N15: and nothing of them is stored."""
    given: dict[str, Any] = {"max_running": 3} | fields
    with pytest.raises(InvalidArgument):
        await configure(driver, **given)

    assert await driver.queues(now=START) == []
