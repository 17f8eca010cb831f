"""Listing by end, and how many jobs a page may look at."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Page, Query
from taskharbor.errors import InvalidArgument
from taskharbor.model.settlement import Ack, Cancelled, Fail
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    MICROSECOND,
    OTHER_QUEUE,
    QUEUE,
    SECOND,
    START,
    enqueue,
    found_ids,
    new_jobs,
    reserve,
    reserve_one,
    row,
    running,
    settle_one,
)


async def pages(driver: Driver, query: Query, *, now: datetime = START + HOUR) -> list[Page]:
    found: list[Page] = []
    while True:
        found.append(await driver.find(query, now=now))
        if found[-1].next_cursor is None:
            return found
        query = replace(query, cursor=found[-1].next_cursor)


async def ended_jobs(driver: Driver) -> list[str]:
    """Twelve jobs of two queues that ended against their enqueue order, two at an instant; ids by end."""
    await enqueue(driver, *new_jobs(6), *new_jobs(6, queue=OTHER_QUEUE))
    held = await reserve(driver, queues=(QUEUE,), limit=6)
    others = await reserve(driver, queues=(OTHER_QUEUE,), limit=6)
    ends: list[str] = []
    for number, pair in enumerate(zip(held[::-1], others[::-1], strict=True)):
        now = START + number * SECOND
        for job in pair:
            settlement = [Ack, Fail, Cancelled][number % 3](job.lease)
            await settle_one(driver, settlement, now=now)
        ends += [job.id for job in sorted(pair, key=lambda job: job.seq)]
    return ends


# ------------------------------------------------------------------ by end


async def test_jobs_are_listed_by_their_end(driver: Driver) -> None:
    """R03: those of one instant by enqueue; the newest first is the exact reverse; no page repeats one."""
    ends = await ended_jobs(driver)
    await enqueue(driver, *new_jobs(2))
    await running(driver, queue="kit-runs")

    for limit in (1, 5, 50):
        with row(limit):
            assert await found_ids(driver, order_by="ended", limit=limit) == ends
            assert await found_ids(driver, order_by="ended", limit=limit, newest_first=True) == ends[::-1]


async def test_a_listing_by_end_has_the_same_filters(driver: Driver) -> None:
    """R02: queue, states, type, failure kind."""
    ends = await ended_jobs(driver)
    jobs = {job.id: job for job in await driver.get(ends, now=START) if job is not None}
    failed = [job_id for job_id in ends if jobs[job_id].state is JobState.FAILED]
    asked: dict[str, tuple[dict[str, Any], list[str]]] = {
        "queue": ({"queue": OTHER_QUEUE}, [one for one in ends if jobs[one].queue == OTHER_QUEUE]),
        "states": ({"states": (JobState.FAILED, JobState.RUNNING)}, failed),
        "failure kind": ({"failure_kind": "error"}, failed),
        "type": ({"type": "kit.never"}, []),
        "worker": ({"worker_id": "worker-a"}, []),
    }
    for name, (filters, expected) in asked.items():
        with row(name):
            assert await found_ids(driver, order_by="ended", **filters) == expected
            found = await found_ids(driver, order_by="ended", newest_first=True, limit=1, **filters)
            assert found == expected[::-1]


async def test_jobs_that_ended_after_an_instant(driver: Driver) -> None:
    """R02: later than it, by end and by enqueue; jobs that go on have no end."""
    ends = await ended_jobs(driver)
    await enqueue(driver, *new_jobs(1))
    after = START + 3 * SECOND

    for newest_first in (False, True):
        sign = -1 if newest_first else 1
        found = await found_ids(
            driver, order_by="ended", ended_after=after, newest_first=newest_first, limit=3
        )
        assert found == ends[8:][::sign]
        by_seq = await found_ids(driver, ended_after=after, newest_first=newest_first)
        assert sorted(by_seq) == sorted(ends[8:])
    assert await found_ids(driver, order_by="ended", ended_after=after - MICROSECOND) == ends[6:]
    assert await found_ids(driver, order_by="ended", ended_after=START + HOUR) == []


async def test_a_job_that_ends_again_is_listed_by_its_last_end(driver: Driver) -> None:
    """R03 F18: once; and not at all while it waits again."""
    first, second = await enqueue(driver, *new_jobs(2))
    for _ in range(2):
        job = await reserve_one(driver)
        await settle_one(driver, Fail(job.lease, "broken"))
    await driver.requeue([first], now=START + SECOND)
    assert await found_ids(driver, order_by="ended") == [second]

    again = await reserve_one(driver, now=START + SECOND)
    await settle_one(driver, Fail(again.lease, "broken"), now=START + 9 * SECOND)

    assert await found_ids(driver, order_by="ended") == [second, first]
    assert await found_ids(driver, order_by="ended", limit=1, newest_first=True) == [first, second]


async def test_a_job_that_ended_twice_at_one_instant_is_listed_once(driver: Driver) -> None:
    """R03: however often it was started again meanwhile."""
    [job_id] = await enqueue(driver, *new_jobs(1))
    for _ in range(3):
        job = await reserve_one(driver)
        await settle_one(driver, Ack(job.lease))
        await driver.requeue([job_id], now=START)
    job = await reserve_one(driver)
    await settle_one(driver, Ack(job.lease))

    assert await found_ids(driver, order_by="ended") == [job_id]
    assert await found_ids(driver, order_by="ended", newest_first=True, limit=1) == [job_id]


async def test_copies_are_not_listed_by_end(driver: Driver) -> None:
    """R03: as in any listing."""
    job = await running(driver)
    await driver.speculate(job.id, now=START)
    await settle_one(driver, Ack(job.lease))

    assert await found_ids(driver, order_by="ended") == [job.id]


async def test_a_cursor_belongs_to_one_order(driver: Driver) -> None:
    """R03: and to one `ended_after`; how many to look at may change on the way."""
    await ended_jobs(driver)
    page = await driver.find(Query(order_by="ended", limit=2), now=START)
    assert page.next_cursor is not None

    for fields in (
        {},
        {"order_by": "ended", "ended_after": START},
        {"order_by": "ended", "newest_first": True},
    ):
        with row(fields), pytest.raises(InvalidArgument):
            await driver.find(Query(cursor=page.next_cursor, **fields), now=START)  # type: ignore[arg-type]
    more = await driver.find(Query(order_by="ended", cursor=page.next_cursor, examine=5, limit=3), now=START)
    assert len(more.jobs) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"examine": 0},
        {"examine": 10_001},
        {"order_by": "run_at"},
        {"ended_after": START.replace(tzinfo=None)},
        {"order_by": "ended", "states": (JobState.READY, JobState.RUNNING)},
    ],
    ids=str,
)
async def test_an_order_or_a_bound_that_makes_no_sense_is_refused(
    driver: Driver, fields: dict[str, Any]
) -> None:
    """R02 N15: before the store is asked."""
    with pytest.raises(InvalidArgument):
        await driver.find(Query(**fields), now=START)


# ------------------------------------------------------------------ how many are looked at


@pytest.mark.parametrize("order_by", ["seq", "ended"])
async def test_a_page_looks_at_no_more_than_it_may(driver: Driver, order_by: Any) -> None:
    """R02: it says how many, ends there, and its cursor goes on; no job that fits is missed."""
    rare, common = new_jobs(3, type="kit.rare"), new_jobs(40, type="kit.common")
    jobs = [*common[:20], rare[0], *common[20:], *rare[1:]]
    await enqueue(driver, *jobs)
    held = await reserve(driver, limit=50)
    await driver.settle([Fail(job.lease, "broken") for job in held], now=START)

    for newest_first in (False, True):
        asked = Query(
            queue=QUEUE, type="kit.rare", examine=10, limit=2, newest_first=newest_first, order_by=order_by
        )
        found = await pages(driver, asked)

        assert max(page.examined for page in found) <= 10
        assert sum(page.examined for page in found) >= 43
        ids = [job.id for page in found for job in page.jobs]
        assert ids == [job.id for job in rare][:: -1 if newest_first else 1]
        assert max(len(page.jobs) for page in found) <= 2
    assert [page.examined for page in await pages(driver, Query(queue="kit-none", order_by=order_by))] == [0]


@pytest.mark.parametrize("order_by", ["seq", "ended"])
async def test_a_page_that_is_full_looked_at_little(driver: Driver, order_by: Any) -> None:
    """R02: without another filter about as many as it has, whatever `examine` allows."""
    await enqueue(driver, *new_jobs(60))
    held = await reserve(driver, limit=60)
    await driver.settle([Ack(job.lease) for job in held], now=START)

    for states in (None, tuple(TERMINAL)):
        page = await driver.find(Query(queue=QUEUE, limit=5, order_by=order_by, states=states), now=START)
        assert len(page.jobs) == 5
        assert 5 <= page.examined <= 20
    page = await driver.find(Query(queue=QUEUE, limit=50, examine=7, order_by=order_by), now=START)
    assert (len(page.jobs), page.examined) == (7, 7)
    assert page.next_cursor is not None
