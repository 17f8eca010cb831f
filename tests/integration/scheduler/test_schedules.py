"""One job per tick on every store, whatever happens to leaders and clocks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from taskharbor.drivers.messages import Query
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.schedule import Schedule
from taskharbor.scheduler import Scheduler
from taskharbor.scheduler.duty import Now
from taskharbor.scheduler.fire_cron import FireCron
from tests.integration.worker.processes import SLOW

START = datetime(2031, 4, 5, 6, 7, 8, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


class StepClock:
    """A wall clock that a test sets as it likes, while the monotonic one only goes on."""

    def __init__(self, start: datetime = START) -> None:
        self.at = start
        self._passed = 0.0

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self._passed

    async def sleep(self, seconds: float) -> None:
        self.pass_time(timedelta(seconds=seconds))

    def pass_time(self, span: timedelta) -> None:
        self.at += span
        self._passed += span.total_seconds()

    def step(self, span: timedelta) -> None:
        """What an administrator or NTP does: the wall clock alone moves."""
        self.at += span


@pytest.fixture
def clock():
    return StepClock()


async def put(harness, clock=None, **rule):
    template = NewJob(id="", type="report", payload=b"{}")
    schedule = Schedule(name="nightly", template=template, **rule)
    return await harness.driver.put_schedule(schedule, now=clock and clock.now())


async def ticks_of(harness, clock=None) -> list[datetime]:
    """The tick of every job that was made, in order."""
    page = await harness.driver.find(Query(limit=1000), now=clock and clock.now())
    assert page.next_cursor is None
    keys = sorted(job.idempotency_key.decode().removeprefix("schedule/nightly/") for job in page.jobs)
    return [datetime.fromisoformat(key) for key in keys]


def leader(harness, clock) -> Scheduler:
    return Scheduler(harness.driver, clock=clock, entropy=Entropy(3))


async def lead_for(scheduler, clock, span, step=30 * SECOND) -> None:
    over = clock.at + span
    while clock.at < over:
        clock.pass_time(step)
        await scheduler.run_once()


# ------------------------------------------------------------------ leaders


async def test_two_leaders_at_the_same_tick_make_one_job(harness, clock):
    """Both believe that they lead, as it can be for a moment when a leader was frozen."""
    await put(harness, clock, cron="* * * * *")
    handles = [harness.driver, harness.driver.another(), harness.driver.another()]
    for handle in handles[1:]:
        await handle.open()
    leaders = [FireCron(handle, Now(handle, clock), Entropy(at)) for at, handle in enumerate(handles)]

    for _ in range(5):
        clock.pass_time(MINUTE)
        await asyncio.gather(*(one.run_once() for one in leaders))

    for handle in handles[1:]:
        await handle.close()
    ticks = await ticks_of(harness, clock)
    assert len(ticks) == 5
    assert all(later - tick == MINUTE for tick, later in pairwise(ticks))


@pytest.mark.more("kills processes or servers and waits until others take over")
async def test_leaders_that_are_killed_at_the_tick_cost_no_tick_and_double_none(shared_harness):
    """One after the other: before the job is stored, after that, and after the tick was noted."""
    harness = shared_harness
    entry = await put(harness, every=SECOND, misfire="all")
    places = ["before_enqueue", "after_enqueue", "after_advance_schedule"]
    for place in places:
        assert await harness.exit_code(harness.start_scheduler(ttl=0.5, dies=place)) == -9
    assert [note["where"] for note in harness.notes("dies")] == places
    died_at = (await harness.driver.info()).at

    for _ in range(2):  # one leads, one waits
        harness.start_scheduler(ttl=0.5)
    async with asyncio.timeout(SLOW):
        while not (ticks := await ticks_of(harness)) or ticks[-1] < died_at + SECOND:
            await asyncio.sleep(0.05)

    assert all(later - tick == SECOND for tick, later in pairwise(ticks)), ticks
    assert ticks[0] - entry.last_tick_at <= SECOND


# ------------------------------------------------------------------ clocks


async def test_a_clock_that_is_set_back_makes_no_tick_twice(harness, clock):
    await put(harness, clock, cron="* * * * *")
    scheduler = leader(harness, clock)
    await lead_for(scheduler, clock, 5 * MINUTE)
    before = await ticks_of(harness, clock)

    clock.step(-3 * MINUTE)
    await lead_for(scheduler, clock, 5 * MINUTE)
    ticks = await ticks_of(harness, clock)

    assert len(before) == 5
    assert ticks[:5] == before
    assert len(ticks) == len(set(ticks)) == 7
    assert all(later - tick == MINUTE for tick, later in pairwise(ticks))


@pytest.mark.parametrize(("misfire", "made"), [("latest", 1), ("all", 60)])
async def test_a_clock_that_is_set_forward_follows_the_misfire_rule_and_goes_on(
    harness, clock, misfire, made
):
    await put(harness, clock, cron="* * * * *", misfire=misfire)
    scheduler = leader(harness, clock)
    await scheduler.run_once()

    clock.step(HOUR)
    clock.pass_time(5 * SECOND)
    await scheduler.run_once()
    after_the_step = await ticks_of(harness, clock)
    await lead_for(scheduler, clock, 2 * MINUTE)

    assert len(after_the_step) == made
    assert len(await ticks_of(harness, clock)) == made + 2


@pytest.mark.parametrize(
    ("start", "cron", "expected"),
    [
        # 02:30 does not exist on 29 March in Berlin: the tick comes right after the gap, at 03:00.
        (datetime(2026, 3, 27, 12, tzinfo=UTC), "30 2 * * *", ["28T01:30", "29T01:00", "30T00:30"]),
        # 02:30 comes twice on 25 October: once is enough.
        (datetime(2026, 10, 23, 12, tzinfo=UTC), "30 2 * * *", ["24T00:30", "25T00:30", "26T01:30"]),
    ],
    ids=["spring", "autumn"],
)
async def test_a_daily_job_runs_once_a_day_through_a_clock_change(harness, start, cron, expected):
    clock = StepClock(start)
    await put(harness, clock, cron=cron, timezone="Europe/Berlin")

    await lead_for(leader(harness, clock), clock, timedelta(days=3), step=timedelta(minutes=30))

    assert [tick.strftime("%dT%H:%M") for tick in await ticks_of(harness, clock)] == expected


# ------------------------------------------------------------------ outages


@pytest.mark.parametrize(("misfire", "made"), [("latest", 1), ("skip", 0), ("all", 3)])
async def test_after_an_outage_the_misfire_rule_decides_and_ticks_go_on(harness, clock, misfire, made):
    """Three hourly ticks were missed, the last of them half an hour ago."""
    clock.at = START.replace(minute=30, second=0)
    await put(harness, clock, cron="0 * * * *", misfire=misfire)
    clock.pass_time(3 * HOUR)

    scheduler = leader(harness, clock)
    await scheduler.run_once()
    assert len(await ticks_of(harness, clock)) == made
    await lead_for(scheduler, clock, HOUR, step=MINUTE / 2)

    assert len(await ticks_of(harness, clock)) == made + 1


async def test_a_pause_and_a_resume_lose_nothing_but_what_was_missed(harness, clock):
    await put(harness, clock, cron="* * * * *", misfire="all")
    scheduler = leader(harness, clock)
    await lead_for(scheduler, clock, 2 * MINUTE)
    await put(harness, clock, cron="* * * * *", misfire="all", paused=True)
    await lead_for(scheduler, clock, 3 * MINUTE)
    assert len(await ticks_of(harness, clock)) == 2

    await put(harness, clock, cron="* * * * *", misfire="all", paused=False)
    await lead_for(scheduler, clock, 2 * MINUTE)

    assert len(await ticks_of(harness, clock)) == 4
