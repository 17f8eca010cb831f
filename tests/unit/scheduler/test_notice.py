"""Jobs that no live worker would claim are reported, once."""

import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.presence import WorkerReport
from taskharbor.model.queue import QueueSettings
from taskharbor.scheduler.duty import Now
from taskharbor.scheduler.unclaimed import WarnUnclaimed
from taskharbor.testing.clock import SimulatedClock

START = datetime(2093, 5, 17, 9, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
entropy = Entropy(5)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(START)


@pytest.fixture
async def driver(clock: SimulatedClock) -> AsyncIterator[Driver]:
    async with MemoryDriver(clock=clock) as driver:
        yield driver


@pytest.fixture
def duty(driver: Driver, clock: SimulatedClock) -> WarnUnclaimed:
    return WarnUnclaimed(driver, Now(driver, clock))


async def put(driver: Driver, **fields: object) -> None:
    job = NewJob(id=entropy.job_id(START), type="train", **fields)  # type: ignore[arg-type]
    await driver.enqueue([job], now=driver.clock.now())


async def worker(driver: Driver, kind: str = "any", types: tuple[str, ...] = ()) -> None:
    report = WorkerReport(worker_id=f"w-{kind}", kind=kind, queues=("default",), types=types)
    await driver.report_worker(report, ttl=60 * MINUTE, now=driver.clock.now())


async def test_a_lane_that_no_worker_offers_is_reported_once_until_one_comes_and_goes(
    driver: Driver, clock: SimulatedClock, duty: WarnUnclaimed, caplog: pytest.LogCaptureFixture
) -> None:
    await worker(driver, "cpu")
    await put(driver, requires="gpu")
    clock.advance(MINUTE)

    assert [await duty.run_once() for _ in range(3)] == [1, 1, 1]
    assert caplog.text.count("no live worker takes jobs of queue default, lane gpu, task train") == 1
    await worker(driver, "gpu")
    assert await duty.run_once() == 0
    await driver.forget_worker("w-gpu", now=clock.now())
    assert await duty.run_once() == 1

    assert caplog.text.count("no live worker takes") == 2


@pytest.mark.parametrize("types", [("other",), ("other", "another")])
async def test_a_type_that_no_worker_knows_is_reported(
    driver: Driver, clock: SimulatedClock, duty: WarnUnclaimed, types: tuple[str, ...]
) -> None:
    await worker(driver, types=types)
    await put(driver)
    clock.advance(MINUTE)

    assert await duty.run_once() == 1


async def test_a_harbor_without_any_worker_gets_other_words(
    driver: Driver, clock: SimulatedClock, duty: WarnUnclaimed, caplog: pytest.LogCaptureFixture
) -> None:
    await put(driver)
    clock.advance(MINUTE)

    await duty.run_once()

    assert "no worker is alive to take jobs" in caplog.text


async def test_what_has_just_come_what_is_taken_and_what_is_paused_is_not_reported(
    driver: Driver, clock: SimulatedClock, duty: WarnUnclaimed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await worker(driver)
    await put(driver)
    await put(driver, queue="held")
    await driver.configure_queue(QueueSettings(queue="held", paused=True), now=clock.now())
    clock.advance(MINUTE)
    await put(driver, requires="gpu")

    assert await duty.run_once() == 0
    assert caplog.text == ""
