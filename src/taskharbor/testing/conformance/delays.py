"""A: the moment a job may run: run_at, delay, time zones and promotion."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.errors import InvalidArgument
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    SECOND,
    START,
    TYPE,
    either_clock,
    enqueue,
    enqueue_one,
    get_one,
    new_job,
    reserve,
    reserve_one,
    state_of,
    unchanged,
)


@pytest.mark.parametrize("offset", [None, -HOUR, -MICROSECOND, timedelta(0)], ids=str)
async def test_a_job_without_a_later_run_at_is_ready(driver: Driver, offset: timedelta | None) -> None:
    """A02 A03 A04: no run_at, one in the past, and exactly now."""
    run_at = None if offset is None else START + offset
    answer = await enqueue_one(driver, run_at=run_at)

    record = await get_one(driver, answer.id)
    [job] = await reserve(driver)

    assert (record.state, record.run_at) == (JobState.READY, run_at)
    assert job.id == answer.id


async def test_a_job_due_in_a_microsecond_waits(driver: Driver) -> None:
    """A05: run_at = now + 1 µs reads scheduled and is not handed out."""
    answer = await enqueue_one(driver, run_at=START + MICROSECOND)

    taken = await reserve(driver)

    assert taken == []
    assert await state_of(driver, answer.id) is JobState.SCHEDULED


@pytest.mark.parametrize("due", [START + MINUTE, START + timedelta(days=30, microseconds=7)], ids=str)
async def test_a_scheduled_job_runs_from_exactly_its_run_at_on(driver: Driver, due: datetime) -> None:
    """A06 R001-13: one microsecond before nothing, at run_at the job, without any promotion in between."""
    answer = await enqueue_one(driver, run_at=due)

    before = await reserve(driver, now=due - MICROSECOND)
    read_before = await state_of(driver, answer.id, now=due - MICROSECOND)
    read_at = await state_of(driver, answer.id, now=due)
    [job] = await reserve(driver, now=due)

    assert (before, read_before) == ([], JobState.SCHEDULED)
    assert (job.id, read_at) == (answer.id, JobState.READY)


async def test_ten_years_ahead_is_a_plan_and_more_is_a_mistake(driver: Driver) -> None:
    """A07: run_at may lie ten years ahead, not eleven."""
    answer = await enqueue_one(driver, run_at=START + timedelta(days=3650))

    async with unchanged(driver, answer.id):
        with pytest.raises(InvalidArgument):
            await enqueue_one(driver, run_at=START + timedelta(days=4015))
        with pytest.raises(InvalidArgument):
            await enqueue_one(driver, delay=timedelta(days=4015))

    assert await state_of(driver, answer.id) is JobState.SCHEDULED


async def test_an_instant_without_a_time_zone_is_refused(driver: Driver) -> None:
    """A08: neither run_at nor now may be naive."""
    naive = START.replace(tzinfo=None)

    async with unchanged(driver):
        with pytest.raises(InvalidArgument):
            await enqueue_one(driver, run_at=naive)
        with pytest.raises(InvalidArgument):
            await driver.enqueue([new_job()], now=naive)


async def test_another_time_zone_means_the_same_instant(driver: Driver) -> None:
    """A09: 15:00 in Kolkata is 09:30 in UTC, for run_at and for now."""
    kolkata = timezone(timedelta(hours=5, minutes=30))
    due = START + MINUTE
    answer = await enqueue_one(driver, run_at=due.astimezone(kolkata), now=START.astimezone(kolkata))

    early = await reserve(driver, now=(due - MICROSECOND).astimezone(kolkata))
    record = await get_one(driver, answer.id, now=due)
    [job] = await reserve(driver, now=due.astimezone(kolkata))

    assert early == []
    assert (record.run_at, record.created_at, answer.at) == (due, START, START)
    assert job.lease_expires_at == due + LEASE


class _ClockChange(tzinfo):
    """A zone whose clocks change on the day after START, between 02:00 and 03:00 by the wall."""

    def __init__(self, before: int, after: int) -> None:
        self.before, self.after = timedelta(hours=before), timedelta(hours=after)

    def utcoffset(self, at: datetime | None) -> timedelta:
        assert at is not None
        wall = at.replace(tzinfo=None)
        two = datetime(START.year, START.month, START.day + 1, 2)  # noqa: DTZ001  (by the wall)
        if two <= wall < two + HOUR:
            return self.after if at.fold else self.before
        return self.before if wall < two else self.after

    def dst(self, at: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, at: datetime | None) -> str:
        return "clock-change"


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)], ids=["fold", "gap"])
@pytest.mark.parametrize("fold", [0, 1])
async def test_instants_around_a_clock_change_are_kept(
    driver: Driver, before: int, after: int, fold: int
) -> None:
    """A10: 02:30 on the night of the change, read by its fold."""
    zone = _ClockChange(before, after)
    wall = datetime(START.year, START.month, START.day + 1, 2, 30, tzinfo=zone, fold=fold)
    meant = datetime(START.year, START.month, START.day + 1, 2, 30, tzinfo=START.tzinfo) - timedelta(
        hours=after if fold else before
    )
    answer = await enqueue_one(driver, run_at=wall)

    record = await get_one(driver, answer.id)
    early = await reserve(driver, now=meant - MICROSECOND)
    [job] = await reserve(driver, now=meant)

    assert record.run_at is not None
    assert record.run_at.astimezone(START.tzinfo) == meant
    assert (early, job.id) == ([], answer.id)


async def test_a_job_scheduled_far_beyond_a_lease_runs_once(driver: Driver) -> None:
    """A12: waiting is not leasing: two hours ahead with a lease of thirty seconds."""
    due = START + 2 * HOUR
    answer = await enqueue_one(driver, run_at=due)

    early = [await reserve(driver, now=START + minutes * MINUTE) for minutes in range(0, 120, 7)]
    await driver.reclaim(now=due - MICROSECOND)
    taken = await reserve_one(driver, now=due)
    again = await reserve(driver, now=due + LEASE - MICROSECOND)

    assert not any(early)
    assert (taken.id, taken.starts, taken.stalls, again) == (answer.id, 1, 0, [])


async def test_jobs_of_one_call_wait_each_for_its_own_delay(driver: Driver) -> None:
    """A05: also beside others that differ in nothing else, or do not wait at all."""
    delays = [None, 5 * SECOND, 7 * SECOND, None, 7 * SECOND]

    ids = await enqueue(driver, *(new_job(delay=delay) for delay in delays))

    assert [(await get_one(driver, job_id)).run_at for job_id in ids] == [
        None if delay is None else START + delay for delay in delays
    ]


@pytest.mark.parametrize("delay", [MICROSECOND, SECOND, timedelta(days=3650)], ids=str)
async def test_a_delay_counts_from_the_deciding_clock(driver: Driver, delay: timedelta) -> None:
    """N14: (delay) run_at = now + delay, to the microsecond."""
    answer = await enqueue_one(driver, delay=delay)

    record = await get_one(driver, answer.id)
    early = await reserve(driver, now=START + delay - MICROSECOND)
    [job] = await reserve(driver, now=START + delay)

    assert (record.state, record.run_at) == (JobState.SCHEDULED, START + delay)
    assert (early, job.id) == ([], answer.id)


async def test_no_delay_is_now(driver: Driver) -> None:
    """N14: (delay) a delay of zero leaves run_at empty."""
    answer = await enqueue_one(driver, delay=timedelta(0))

    record = await get_one(driver, answer.id)

    assert (record.state, record.run_at) == (JobState.READY, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"delay": -MICROSECOND},
        {"delay": 5},
        {"delay": SECOND, "run_at": START + SECOND},
    ],
    ids=["negative", "a bare number", "beside run_at"],
)
async def test_a_senseless_delay_is_refused(driver: Driver, fields: dict[str, Any]) -> None:
    """N14: (delay) below zero, not a timedelta, or beside run_at."""
    async with unchanged(driver):
        with pytest.raises(InvalidArgument):
            await enqueue_one(driver, **fields)


async def test_promotion_cannot_be_seen(driver: Driver) -> None:
    """A06: records, counts and order are the same with and without `promote`; never more than its limit."""
    ids = [
        (await enqueue_one(driver, run_at=START + timedelta(seconds=seconds), type=TYPE)).id
        for seconds in (3, 1, 2)
    ]
    due = START + MINUTE

    async with unchanged(driver, *ids, now=due):
        moved = [
            (await driver.promote(2, now=due)).count,
            (await driver.promote(2, now=due)).count,
            (await driver.promote(now=due)).count,
        ]
    taken = await reserve(driver, limit=5, now=due)

    assert moved[0] <= 2
    assert sum(moved) <= 3
    assert [job.id for job in taken] == [ids[1], ids[2], ids[0]]


async def test_promotion_touches_nothing_that_is_not_due(driver: Driver) -> None:
    """A06 R003-18: a job a microsecond ahead stays scheduled, however often two sweepers promote."""
    due = START + MINUTE
    answer = await enqueue_one(driver, run_at=due, priority=7, requires="gpu")
    other = await driver.another().open()

    async with unchanged(driver, answer.id, now=due - MICROSECOND):
        moved = [(await each.promote(now=due - MICROSECOND)).count for each in (driver, other)]
    await asyncio.gather(driver.promote(now=due), other.promote(now=due))
    taken = await reserve(driver, limit=5, now=due, lanes=("gpu",))
    await other.close()

    assert moved == [0, 0]
    assert [(job.id, job.priority, job.requires) for job in taken] == [(answer.id, 7, "gpu")]


@either_clock
async def test_the_most_urgent_of_a_thousand_due_jobs_comes_with_the_second_claim(
    driver: Driver, now: datetime | None
) -> None:
    """B14: a claim promotes at least a thousand due jobs; what it leaves is with the next one."""
    start = now or (await driver.info()).at - HOUR
    jobs = [new_job(run_at=start + SECOND + place * MICROSECOND) for place in range(1000)]
    urgent = new_job(run_at=start + MINUTE, priority=100)
    await driver.enqueue([urgent, *jobs], now=start)

    first, second = [await reserve_one(driver, lease_for=HOUR, now=now and now + HOUR) for _ in range(2)]

    assert urgent.id in (first.id, second.id)
    assert {first.id, second.id} <= {urgent.id, jobs[0].id, jobs[1].id}
