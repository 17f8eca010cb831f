"""A worker alone: schedules fire and old jobs go, without a scheduler process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.drivers.messages import Query
from taskharbor.events import DutyRan
from taskharbor.model.job import NewJob
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.schedule import Schedule
from taskharbor.model.state import JobState
from tests.integration.worker.processes import ProcessHarness


@pytest.fixture
def harbor(tmp_path: Path) -> Harbor:
    return Harbor(f"sqlite:///{tmp_path}/jobs.db")


@asynccontextmanager
async def at_work(harbor: Harbor, **options: Any) -> AsyncIterator[None]:
    worker = harbor.worker(**options)
    working = asyncio.ensure_future(worker.arun())
    try:
        yield
    finally:
        worker.stop()
        await working
        await harbor.aclose()


async def until(is_so: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not await is_so():
            await asyncio.sleep(0.05)


async def test_a_worker_alone_forgets_a_completed_job_after_its_retention(harbor: Harbor) -> None:
    @harbor.task
    async def quick() -> None: ...

    driver = await harbor.client.adriver()
    kept = Retention(completed=timedelta(milliseconds=1))
    await driver.configure_queue(QueueSettings(queue="default", retention=kept))
    job = await quick.aenqueue()
    harbor.worker()
    await harbor.worker(scheduler=False).arun(until_idle=True)
    assert (await driver.get([job.id]))[0] is not None

    async with at_work(harbor):

        async def is_gone() -> bool:
            return (await driver.get([job.id]))[0] is None

        await until(is_gone)


async def test_a_worker_alone_fires_a_schedule(harbor: Harbor) -> None:
    ran = asyncio.Event()

    @harbor.cron(every="1s")
    @harbor.task
    async def tick() -> None:
        ran.set()

    async with at_work(harbor), asyncio.timeout(20):
        await ran.wait()


async def test_a_worker_without_its_scheduler_runs_no_duty(harbor: Harbor) -> None:
    duties: list[DutyRan] = []
    harbor.events.listen(duties.append, DutyRan)
    done = asyncio.Event()

    @harbor.task
    async def quick() -> None:
        done.set()

    async with at_work(harbor, scheduler=False), asyncio.timeout(20):
        await quick.aenqueue()
        await done.wait()

    assert duties == []


async def test_the_role_is_given_up_with_the_end_of_the_worker(harbor: Harbor) -> None:
    led = asyncio.Event()
    harbor.events.listen(lambda _: led.set(), DutyRan)

    @harbor.task
    async def quick() -> None: ...

    async with at_work(harbor), asyncio.timeout(20):
        await led.wait()

    async with harbor.driver.another() as driver:
        lease = await driver.hold_role("scheduler", "somebody-else", timedelta(seconds=5))
        assert lease.is_mine
        assert (await driver.find(Query())).jobs == []


async def test_a_worker_without_an_app_has_one_too(harness: ProcessHarness) -> None:
    """`--handle` alone: a schedule of the store fires, and its job is done."""
    template = NewJob(id="", type="tick", max_stalls=3)
    await harness.driver.put_schedule(Schedule(name="tick", every=timedelta(seconds=1), template=template))
    worker = harness.run("taskharbor", "worker", "--handle", "tick=echo", "--url", harness.url)

    async def has_ticked() -> bool:
        return any(job.state is JobState.COMPLETED for job in (await harness.driver.find(Query())).jobs)

    await until(has_ticked, 40)
    worker.terminate()
    assert await harness.exit_code(worker) == 0


@pytest.mark.parametrize("scheduler", [True, False])
async def test_a_running_worker_goes_on_declaring_the_schedules_of_its_code(
    harbor: Harbor, monkeypatch: pytest.MonkeyPatch, scheduler: bool
) -> None:
    """And puts back neither a rule that newer code has changed nor one that was deleted."""
    monkeypatch.setattr("taskharbor.harbor.schedules.RENEW_EVERY", timedelta(milliseconds=50))

    @harbor.cron("0 3 * * *", name="nightly")
    @harbor.cron("0 4 * * *", name="deleted")
    @harbor.task
    async def clean() -> None: ...

    driver = await harbor.client.adriver()
    async with at_work(harbor, scheduler=scheduler):

        async def is_stored() -> bool:
            return len(await driver.schedules()) == 2

        await until(is_stored)
        newer = Schedule(
            name="nightly", template=NewJob(id="", type="clean"), cron="0 5 * * *", declared=True
        )
        put = await driver.put_schedule(newer)
        await driver.delete_schedule("deleted")

        async def is_declared_again() -> bool:
            found = {entry.schedule.name: entry for entry in await driver.schedules()}
            renewed = found["nightly"].declared_at
            return "deleted" not in found and renewed is not None and renewed > put.updated_at

        await until(is_declared_again)
        [entry] = [one for one in await driver.schedules() if one.schedule.name == "nightly"]
        assert (entry.schedule.cron, entry.updated_at) == ("0 5 * * *", put.updated_at)
