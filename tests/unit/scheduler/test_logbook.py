"""The leader merges cells, notes levels and fires, and loses no number by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.log_pages import each_entry
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import Claim
from taskharbor.errors import DriverUnavailable
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.log_cells import Level, Numbers, packed, sum_of_numbers, unpacked
from taskharbor.model.log_series import MINUTE, QUARTER
from taskharbor.model.logbook import (
    FIRES,
    KEPT,
    LEVELS,
    LEVELS_QUARTERS,
    NUMBERS,
    NUMBERS_QUARTERS,
    LogEntry,
)
from taskharbor.model.schedule import Schedule
from taskharbor.observe.logbook import LogReader
from taskharbor.scheduler import Scheduler
from taskharbor.scheduler.duty import Now
from taskharbor.scheduler.logbook import MergeLog, NoteLevels
from taskharbor.testing.clock import SimulatedClock

START = datetime(2093, 5, 17, 9, 30, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(START)


@pytest.fixture
async def driver(clock: SimulatedClock) -> AsyncIterator[Driver]:
    async with MemoryDriver(clock=clock, entropy=Entropy(1)) as driver:
        yield driver


async def put(driver: Driver, at: datetime, by: str, completed: int = 1, queue: str = "mail") -> None:
    data = packed([Numbers(queue, "send", completed=completed)])
    await driver.write_log([LogEntry(book=NUMBERS, at=at, by=by, data=data, until=at + KEPT[NUMBERS])])


async def cells(driver: Driver, book: str) -> list[LogEntry]:
    return [one async for one in each_entry(driver, book, START - DAY, START + 2 * DAY)]


async def done(driver: Driver, book: str = NUMBERS) -> int:
    rows = sum_of_numbers(unpacked(one.data, Numbers) for one in await cells(driver, book))
    return sum(row.completed for row in rows)


def merging(driver: Driver, clock: SimulatedClock) -> MergeLog:
    return MergeLog(driver, Now(driver, clock))


async def test_the_cells_of_a_minute_become_one_when_it_is_over(driver: Driver, clock: SimulatedClock):
    for by in ("a", "b", "c"):
        await put(driver, START, by)
        await put(driver, START + MINUTE, by)
    duty = merging(driver, clock)

    clock.advance_to(START + 2 * MINUTE + timedelta(seconds=59))
    await duty.run_once()
    assert len(await cells(driver, NUMBERS)) == 6

    clock.advance_to(START + 3 * MINUTE)
    assert await duty.run_once() == 3
    found = await cells(driver, NUMBERS)
    assert [(one.at, one.by) for one in found] == [
        (START, ""),
        *((START + MINUTE, by) for by in ("a", "b", "c")),
    ]
    assert found[0].until == START + KEPT[NUMBERS]
    assert await done(driver) == 6
    assert await duty.run_once() == 0


async def test_fifteen_minutes_become_a_quarter(driver: Driver, clock: SimulatedClock):
    for number in range(20):
        await put(driver, START + number * MINUTE, "a", completed=number)
    duty = merging(driver, clock)

    for number in range(20):
        clock.advance_to(START + number * MINUTE)
        await duty.run_once()

    [quarter] = await cells(driver, NUMBERS_QUARTERS)
    assert (quarter.at, quarter.by, quarter.until) == (START, "", START + KEPT[NUMBERS_QUARTERS])
    assert [row.completed for row in unpacked(quarter.data, Numbers)] == [sum(range(15))]
    assert await done(driver) == sum(range(20))


async def test_the_next_leader_goes_on_where_the_last_one_stopped(driver: Driver, clock: SimulatedClock):
    for number in range(60):
        await put(driver, START + number * MINUTE, "a")
        await put(driver, START + number * MINUTE, "b")
    clock.advance_to(START + 20 * MINUTE)
    first = merging(driver, clock)
    for _ in range(40):
        await first.run_once()

    clock.advance_to(START + 63 * MINUTE)
    second = merging(driver, clock)
    await second.run_once()

    assert [one.at for one in await cells(driver, NUMBERS_QUARTERS)] == [
        START + number * QUARTER for number in range(4)
    ]
    assert {one.by for one in await cells(driver, NUMBERS)} == {""}
    assert (await done(driver), await done(driver, NUMBERS_QUARTERS)) == (120, 120)


async def test_a_leader_that_starts_late_catches_up_in_bounded_steps(driver: Driver, clock: SimulatedClock):
    for hour in range(5):
        await put(driver, START + hour * timedelta(hours=1), "a")
    clock.advance_to(START + timedelta(hours=5))
    duty = merging(driver, clock)

    for _ in range(24 + 1):
        await duty.run_once()

    assert len(await cells(driver, NUMBERS_QUARTERS)) == 5
    assert await done(driver, NUMBERS_QUARTERS) == 5


async def test_two_leaders_at_once_count_nothing_twice(driver: Driver, clock: SimulatedClock):
    for by in ("a", "b"):
        await put(driver, START, by)
    clock.advance_to(START + 5 * MINUTE)
    one, other = merging(driver, clock), merging(driver, clock)

    for _ in range(40):
        await one.run_once()
        await other.run_once()

    assert await done(driver) == 2


async def test_levels_are_noted_once_a_minute(driver: Driver, clock: SimulatedClock):
    await driver.enqueue([NewJob(id=Entropy(3).job_id(START), type="t", queue="mail") for _ in range(1)])
    await driver.enqueue([NewJob(id=Entropy(4).job_id(START), type="t", queue="mail")])
    await driver.reserve(Claim(queues=("mail",), worker_id="w"))
    duty = NoteLevels(driver, Now(driver, clock))

    await duty.run_once()
    clock.advance_to(START + timedelta(seconds=30))
    await duty.run_once()
    clock.advance_to(START + MINUTE + timedelta(seconds=5))
    await duty.run_once()

    found = await cells(driver, LEVELS)
    assert [one.at for one in found] == [START, START + MINUTE]
    assert [unpacked(one.data, Level) for one in found] == [
        [Level("mail", 1, 1, 1, 0, 0.0)],
        [Level("mail", 1, 1, 1, 0, 65.0)],
    ]
    assert [one.at for one in await cells(driver, LEVELS_QUARTERS)] == [START]


async def test_every_fire_of_a_schedule_is_noted(driver: Driver, clock: SimulatedClock):
    await driver.put_schedule(
        Schedule(name="nightly", template=NewJob(id="", type="t"), every=MINUTE, misfire="all"), now=START
    )
    scheduler = Scheduler(driver, clock=clock, entropy=Entropy(2))
    clock.advance_to(START + 3 * MINUTE)
    await scheduler.run_once()

    fires = (await LogReader(driver).fires(clock.now()))["nightly"]

    assert [tick for tick, _ in fires] == [START + number * MINUTE for number in (3, 2, 1)]
    jobs = await driver.get([job_id for _, job_id in fires])
    assert all(job is not None and job.headers["taskharbor-schedule"] == "nightly" for job in jobs)
    assert {one.until - one.at for one in await cells(driver, FIRES)} == {KEPT[FIRES]}


async def test_a_store_without_a_logbook_is_left_alone(clock: SimulatedClock):
    async with MemoryDriver(clock=clock) as driver:
        driver.capabilities = replace(driver.capabilities, logbook=False)
        await driver.put_schedule(
            Schedule(name="nightly", template=NewJob(id="", type="t"), every=MINUTE), now=START
        )
        scheduler = Scheduler(driver, clock=clock, entropy=Entropy(2))
        clock.advance_to(START + 3 * MINUTE)

        await scheduler.run_once()

        assert (await driver.count())["default"].ready == 1


# ------------------------------------------------------------------ reading


async def test_reading_is_the_same_before_and_after_merging(driver: Driver, clock: SimulatedClock):
    for number in range(40):
        for by in ("a", "b"):
            await put(driver, START + number * MINUTE, by, completed=number)
    now = START + 40 * MINUTE
    clock.advance_to(now)

    async def read(window: str) -> tuple[int, ...]:
        since, until, step, [total] = await LogReader(driver).series(window, now)
        assert (until - since) // step == len(total.done)
        return sum(filter(None, total.done)), sum(filter(None, total.failed))

    before = [await read(window) for window in ("1h", "24h", "7d", "30d")]
    duty = merging(driver, clock)
    for _ in range(40):
        await duty.run_once()

    assert before == [(2 * sum(range(40)), 0)] * 4
    assert [await read(window) for window in ("1h", "24h", "7d", "30d")] == before


async def test_what_is_final_is_read_once(driver: Driver, clock: SimulatedClock):
    for number in range(30):
        await put(driver, START + number * MINUTE, "a", completed=1)
    asked: list[datetime] = []
    read_log = driver.read_log

    async def counting(book, since, until, **options):
        if book == NUMBERS:
            asked.append(since)
        return await read_log(book, since, until, **options)

    driver.read_log = counting  # type: ignore[method-assign]
    reader, now = LogReader(driver), START + 30 * MINUTE
    clock.advance_to(now)

    _, _, _, [first] = await reader.series("1h", now)
    await put(driver, START + 29 * MINUTE, "b", completed=5)
    _, _, _, [again] = await reader.series("1h", now + timedelta(seconds=1))

    assert (sum(filter(None, first.done)), sum(filter(None, again.done))) == (30, 35)
    assert asked[-1] >= now - 6 * MINUTE
    _, _, _, [other] = await reader.series("6h", now)
    assert sum(filter(None, other.done)) == 35


async def test_reads_at_the_same_time_leave_no_gap(driver: Driver, clock: SimulatedClock):
    for number in range(90):
        await put(driver, START + number * MINUTE, "a", completed=1)
    now = START + 90 * MINUTE
    clock.advance_to(now)
    read_log, has_asked, may_go, has_failed = driver.read_log, asyncio.Event(), asyncio.Event(), False

    async def slow_or_broken(book, since, until, **options):
        nonlocal has_failed
        if book == NUMBERS and since < now - 61 * MINUTE and not has_failed:
            has_failed = True
            raise DriverUnavailable("away")
        has_asked.set()
        await may_go.wait()
        return await read_log(book, since, until, **options)

    driver.read_log = slow_or_broken  # type: ignore[method-assign]
    reader = LogReader(driver)
    short = asyncio.create_task(reader.numbers(now - 30 * MINUTE, now, now))
    await has_asked.wait()
    with pytest.raises(DriverUnavailable):
        await reader.numbers(START, now, now)
    may_go.set()
    await short

    assert len(await reader.numbers(START, now, now)) == 90
