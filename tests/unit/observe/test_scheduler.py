"""What the leading scheduler does is counted: schedules that fire, those that cannot, second runs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.messages import Claim
from taskharbor.events import EventBus
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.model.speculation import SPECULATE_HEADER, Speculate, header_of
from taskharbor.observe import metric_names
from taskharbor.observe.meter import Meter
from taskharbor.scheduler import Scheduler

TEMPLATE = NewJob(id="", type="tick", queue="ticks")


@pytest.fixture
async def driver(clock):
    async with MemoryDriver(clock=clock, entropy=Entropy(3)) as driver:
        yield driver


def scheduler(driver, clock) -> tuple[Scheduler, Meter]:
    events, meter = EventBus(), Meter()
    meter.listen(events)
    return Scheduler(driver, clock=clock, entropy=Entropy(5), events=events), meter


async def run_for(one: Scheduler, clock, seconds: int) -> None:
    for _ in range(seconds):
        await one.run_once()
        await clock.pass_time(timedelta(seconds=1))


async def test_every_tick_that_becomes_a_job_is_counted_once_under_any_leader(driver, clock):
    schedule = Schedule(name="often", template=TEMPLATE, every=timedelta(seconds=10))
    await driver.put_schedule(schedule, now=clock.now())
    first, meter = scheduler(driver, clock)

    await run_for(first, clock, 35)

    jobs = (await driver.count(["ticks"], now=clock.now()))["ticks"].total
    counted = meter.sample().counters
    assert counted[metric_names.SCHEDULE_FIRES.name] == {("often", "fired"): jobs, ("often", "error"): 0}
    assert counted[metric_names.DUTY_JOBS.name]["fire-cron",] == jobs >= 3


async def test_a_schedule_that_cannot_fire_is_counted_as_an_error(driver, clock):
    rate = RateLimit(1, timedelta(hours=1))
    await driver.configure_queue(QueueSettings(queue="ticks", enqueue_rate=rate), now=clock.now())
    schedule = Schedule(name="often", template=TEMPLATE, every=timedelta(seconds=10))
    await driver.put_schedule(schedule, now=clock.now())
    one, meter = scheduler(driver, clock)

    await run_for(one, clock, 35)

    counted = meter.sample().counters[metric_names.SCHEDULE_FIRES.name]
    assert counted["often", "fired"] == 1
    assert counted["often", "error"] >= 1


async def test_a_second_run_of_a_straggler_is_counted(driver, clock):
    rule = header_of(Speculate(after=timedelta(seconds=5)))
    job = NewJob(
        id=Entropy(9).job_id(clock.now()), type="slow", queue="mail", headers={SPECULATE_HEADER: rule}
    )
    await driver.enqueue([job], now=clock.now())
    claim = Claim(queues=("mail",), worker_id="w", lease_for=timedelta(hours=1))
    await driver.reserve(claim, now=clock.now())
    one, meter = scheduler(driver, clock)

    await run_for(one, clock, 20)

    assert meter.sample().counters[metric_names.COPIES.name] == {("mail", "slow"): 1}


async def test_a_job_that_the_sweep_gives_up_is_a_failed_one_and_a_stall(driver, clock, caplog):
    job = NewJob(id=Entropy(9).job_id(clock.now()), type="slow", queue="mail", max_stalls=1)
    await driver.enqueue([job], now=clock.now())
    claim = Claim(queues=("mail",), worker_id="w", lease_for=timedelta(seconds=5))
    await driver.reserve(claim, now=clock.now())
    one, meter = scheduler(driver, clock)

    await run_for(one, clock, 20)

    counted = meter.sample().counters
    assert counted[metric_names.STALLS.name] == {("mail", "slow"): 1}
    assert counted[metric_names.JOBS_FINISHED.name] == {("mail", "slow", "", "failed"): 1}
    [line] = [record for record in caplog.records if "given up" in record.getMessage()]
    assert (line.levelname, line.taskharbor_job_id) == ("WARNING", job.id)
