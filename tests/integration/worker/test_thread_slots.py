"""Threads that run job after job: what else must go on beside them, and what ends them."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from taskharbor.drivers import connect
from taskharbor.events import EventBus, JobStarted
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.outcome import Snooze
from taskharbor.model.state import JobState
from taskharbor.worker import Worker

SLOW = 30.0
clock = SystemClock()
entropy = Entropy()


@pytest.fixture
async def driver():
    async with connect("memory://") as driver:
        yield driver


async def put(driver: Any, *types: str, **fields: Any) -> list[str]:
    jobs = [NewJob(id=entropy.job_id(clock.now()), type=name, **fields) for name in types]
    await driver.enqueue(jobs)
    return [job.id for job in jobs]


async def states(driver: Any, ids: list[str]) -> list[JobState]:
    return [record.state for record in await driver.get(ids)]


async def run(worker: Worker) -> None:
    await asyncio.wait_for(worker.arun(until_idle=True), SLOW)


async def test_one_thread_runs_many_jobs_in_their_order(driver):
    seen = []

    def blocking(ctx, job):
        seen.append((threading.get_ident(), job.id))

    worker = Worker(driver, concurrency=1)
    worker.register("blocking", blocking)
    ids = await put(driver, *["blocking"] * 300)
    await run(worker)

    assert [job_id for _, job_id in seen] == ids
    assert len({thread for thread, _ in seen}) == 1
    assert set(await states(driver, ids)) == {JobState.COMPLETED}


async def test_jobs_of_the_event_loop_keep_their_place_among_those_of_threads(driver):
    seen = []

    def blocking(ctx, job):
        seen.append((job.id, threading.current_thread() is threading.main_thread()))

    async def waiting(ctx, job):
        seen.append((job.id, threading.current_thread() is threading.main_thread()))

    worker = Worker(driver, concurrency=1)
    worker.register("blocking", blocking)
    worker.register("waiting", waiting)
    ids = await put(driver, *["blocking", "waiting", "waiting", "blocking", "blocking"] * 40)
    await run(worker)

    assert [job_id for job_id, _ in seen] == ids
    assert [in_loop for _, in_loop in seen[:5]] == [False, True, True, False, False]


async def test_a_job_that_blocks_holds_up_no_other(driver):
    go_on, others = threading.Event(), []

    def blocking(ctx, job):
        if job.payload == b"first":
            assert go_on.wait(SLOW)
        else:
            others.append(job.id)
            if len(others) == 200:
                go_on.set()

    worker = Worker(driver, concurrency=2)
    worker.register("blocking", blocking)
    first = await put(driver, "blocking", payload=b"first")
    ids = await put(driver, *["blocking"] * 200)
    await run(worker)

    assert set(await states(driver, first + ids)) == {JobState.COMPLETED}


async def test_every_start_is_announced_before_its_end_and_has_its_time_limit(driver):
    started, deadlines = [], []

    def blocking(ctx, job):
        deadlines.append(ctx.deadline)

    events = EventBus()
    events.listen(lambda event: started.append(event.job_id) if isinstance(event, JobStarted) else None)
    worker = Worker(driver, concurrency=2, events=events)
    worker.register("blocking", blocking)
    ids = await put(driver, *["blocking"] * 50, timeout=timedelta(minutes=1))
    await run(worker)

    assert sorted(started) == sorted(ids)
    assert len(deadlines) == 50
    assert None not in deadlines


async def test_a_plain_function_may_return_something_to_await(driver):
    """As a decorated coroutine function does when the decorator hides it."""

    async def later(job):
        await asyncio.sleep(0)
        if job.payload == b"bad":
            raise ValueError("too late")
        return 7

    worker = Worker(driver, concurrency=2)
    worker.register("blocking", lambda ctx, job: later(job))
    good = await put(driver, *["blocking"] * 5)
    bad = await put(driver, "blocking", payload=b"bad", max_attempts=1)
    await run(worker)

    assert [record.result for record in await driver.get(good)] == [b"7"] * 5
    [failed] = await driver.get(bad)
    assert (failed.state, failed.last_error) == (JobState.FAILED, "ValueError: too late")


async def test_middleware_goes_around_a_plain_function_in_the_event_loop(driver):
    seen = []

    async def layer(ctx, job, call_next):
        seen.append(threading.current_thread() is threading.main_thread())
        return await call_next(ctx, job)

    def blocking(ctx, job):
        seen.append(threading.current_thread() is threading.main_thread())

    worker = Worker(driver, concurrency=1)
    worker.register("blocking", blocking)
    worker.use(layer)
    await put(driver, "blocking")
    await run(worker)

    assert seen == [True, False]


async def test_a_cancelled_job_does_not_start_in_a_thread(driver):
    """It is found by the claim, or by the thread that takes it from the list."""
    ran, go_on = [], threading.Event()

    def blocking(ctx, job):
        ran.append(job.id)
        assert go_on.wait(SLOW)

    worker = Worker(driver, concurrency=1, prefetch=1, heartbeat=timedelta(milliseconds=50))
    worker.register("blocking", blocking)
    first, second = await put(driver, "blocking", "blocking")
    task = asyncio.create_task(worker.arun(until_idle=True))
    async with asyncio.timeout(SLOW):
        while await states(driver, [second]) != [JobState.RUNNING] or not ran:
            await clock.sleep(0.005)
        await driver.cancel([second])
        await clock.sleep(0.2)  # a few heartbeats
    go_on.set()
    await asyncio.wait_for(task, SLOW)

    assert ran == [first]
    assert await states(driver, [first, second]) == [JobState.COMPLETED, JobState.CANCELLED]


async def test_what_a_plain_function_asks_for_is_done(driver):
    runs = []

    def blocking(ctx, job):
        runs.append(job.id)
        return Snooze(timedelta(milliseconds=1)) if len(runs) == 1 else None

    worker = Worker(driver, concurrency=1)
    worker.register("blocking", blocking)
    [job_id] = await put(driver, "blocking")
    async with asyncio.timeout(SLOW):
        while await states(driver, [job_id]) != [JobState.COMPLETED]:
            await run(worker)

    assert runs == [job_id, job_id]


async def test_a_stop_releases_what_no_thread_has_begun(driver):
    begun, go_on = threading.Event(), threading.Event()

    def blocking(ctx, job):
        begun.set()
        assert go_on.wait(SLOW)

    worker = Worker(driver, concurrency=1, prefetch=5)
    worker.register("blocking", blocking)
    ids = await put(driver, *["blocking"] * 6)
    task = asyncio.create_task(worker.arun())
    assert await asyncio.to_thread(begun.wait, SLOW)
    worker.stop()
    async with asyncio.timeout(SLOW):
        while (await states(driver, ids)).count(JobState.READY) < 5:
            await clock.sleep(0.005)
    go_on.set()
    await asyncio.wait_for(task, SLOW)

    assert sorted(await states(driver, ids)) == sorted([JobState.COMPLETED, *[JobState.READY] * 5])


async def test_a_system_without_threads_costs_an_attempt_and_not_the_slot(driver, monkeypatch):
    ran = []

    def blocking(ctx, job):
        ran.append(job.id)

    start, refusals = threading.Thread.start, 1

    def start_later(thread):
        nonlocal refusals
        if thread.name.startswith("taskharbor-") and thread.name[-1].isdigit() and refusals:
            refusals -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    worker = Worker(driver, concurrency=1)
    worker.register("blocking", blocking)
    [first] = await put(driver, "blocking", max_attempts=1)
    others = await put(driver, *["blocking"] * 3)
    await run(worker)

    [failed] = await driver.get([first])
    assert (failed.state, failed.last_error) == (JobState.FAILED, "RuntimeError: can't start new thread")
    assert ran == others
