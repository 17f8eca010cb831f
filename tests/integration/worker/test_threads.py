"""Blocking handlers in threads, and the heartbeat's own thread: in real time, on the memory store."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
import threading
from datetime import timedelta
from typing import Any

import pytest

from taskharbor.drivers import connect
from taskharbor.events import EventBus, HandlerAbandoned, LoopBlocked
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.state import JobState
from taskharbor.worker import Worker

SLOW = 30.0
clock = SystemClock()


class Floor:
    def __init__(self, driver: Any, **options: Any) -> None:
        self.driver = driver
        self.events: list[Any] = []
        bus = EventBus()
        bus.listen(self.events.append)
        self.worker = Worker(driver, events=bus, **options)
        self.worker.register("nothing", lambda ctx, job: None)  # without any it would refuse to start
        self.entropy = Entropy()

    async def put(self, **fields: Any) -> str:
        job_id = self.entropy.job_id(clock.now())
        await self.driver.enqueue([NewJob(id=job_id, type="work", **fields)])
        return job_id

    async def when(self, job_id: str, is_so: Any) -> Any:
        async with asyncio.timeout(SLOW):
            while True:
                [record] = await self.driver.get([job_id])
                if is_so(record):
                    return record
                await clock.sleep(0.005)

    async def ended(self, job_id: str) -> Any:
        return await self.when(job_id, lambda record: record.state.is_terminal)

    async def heard(self, kind: Any) -> Any:
        async with asyncio.timeout(SLOW):
            while not (found := [event for event in list(self.events) if type(event) is kind]):
                await clock.sleep(0.01)
        return found[0]


@pytest.fixture
async def driver():
    async with connect("memory://") as driver:
        yield driver


async def stopped(floor: Floor, task: asyncio.Task[None]) -> None:
    floor.worker.stop(now=True)
    await asyncio.wait_for(task, SLOW)


async def running(floor: Floor) -> None:
    async with asyncio.timeout(SLOW):
        while not floor.worker.is_running:
            await clock.sleep(0.005)


async def test_a_plain_function_runs_in_a_thread_with_a_copy_of_the_context(driver):
    flag = contextvars.ContextVar("flag", default="clean")
    names = []

    def handler(ctx, job):
        names.append((threading.current_thread().name, flag.get()))
        flag.set("dirty")
        return 7

    floor = Floor(driver, concurrency=1)
    floor.worker.register("work", handler)
    ids = [await floor.put() for _ in range(5)]
    await asyncio.wait_for(floor.worker.arun(until_idle=True), SLOW)

    assert [(await floor.ended(job_id)).result for job_id in ids] == [b"7"] * 5
    assert names == [("taskharbor-1", "clean")] * 5, "one thread, used again, and nothing leaks through it"


async def test_several_blocking_handlers_run_at_once(driver):
    together = threading.Barrier(4, timeout=SLOW)

    def handler(ctx, job):
        together.wait()

    floor = Floor(driver, concurrency=4)
    floor.worker.register("work", handler)
    ids = [await floor.put() for _ in range(8)]
    await asyncio.wait_for(floor.worker.arun(until_idle=True), SLOW)

    assert [(await floor.ended(job_id)).state for job_id in ids] == [JobState.COMPLETED] * 8


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), StopIteration(), ValueError("no")])
async def test_whatever_a_thread_raises_is_a_failure(driver, error):
    def handler(ctx, job):
        raise error

    floor = Floor(driver, retry=RetryPolicy(max_attempts=1))
    floor.worker.register("work", handler)
    job_id = await floor.put()
    await asyncio.wait_for(floor.worker.arun(until_idle=True), SLOW)

    record = await floor.ended(job_id)
    assert record.state is JobState.FAILED
    assert type(error).__name__ in record.last_error


async def test_a_thread_sees_that_it_was_cancelled(driver):
    def handler(ctx, job):
        assert ctx.cancelled.wait_blocking(SLOW)
        return ctx.cancelled.reason

    floor = Floor(driver)
    floor.worker.register("work", handler)
    job_id = await floor.put()
    task = asyncio.create_task(floor.worker.arun())
    await floor.when(job_id, lambda record: record.state is JobState.RUNNING)
    await driver.cancel([job_id])

    assert (await floor.ended(job_id)).state is JobState.CANCELLED
    await stopped(floor, task)


async def test_a_thread_that_ignores_its_time_limit_is_a_failure_and_loses_its_slot(driver, caplog):
    go_on = threading.Event()

    def handler(ctx, job):
        if job.payload == b"stuck":
            go_on.wait(SLOW)

    floor = Floor(
        driver, concurrency=1, retry=RetryPolicy(max_attempts=1), patience=timedelta(milliseconds=50)
    )
    floor.worker.register("work", handler)
    stuck = await floor.put(payload=b"stuck", timeout=timedelta(milliseconds=50))
    fine = await floor.put()
    task = asyncio.create_task(floor.worker.arun())

    assert (await floor.ended(stuck)).failure_kind == "timeout"
    assert (await floor.ended(fine)).state is JobState.COMPLETED
    assert (await floor.heard(HandlerAbandoned)).where == "thread"
    assert "keeps running in its thread" in caplog.text
    go_on.set()
    await stopped(floor, task)


async def test_a_busy_event_loop_does_not_cost_a_lease(driver, caplog):
    """C22: the heartbeat lives elsewhere, and says who blocks the loop."""
    lease = timedelta(seconds=1)

    async def handler(ctx, job):
        if job.payload == b"blocks":
            threading.Event().wait(3.0)
        else:
            await ctx.clock.sleep(0.01)

    floor = Floor(driver, lease=lease, concurrency=2)
    floor.worker.register("work", handler)
    blocks = await floor.put(payload=b"blocks")
    other = await floor.put()
    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(floor.worker.arun(until_idle=True), SLOW)

    for job_id in (blocks, other):
        record = await floor.ended(job_id)
        assert (record.state, record.starts, record.stalls) == (JobState.COMPLETED, 1, 0)
    blocked = await floor.heard(LoopBlocked)
    assert "threading.py" in blocked.where
    assert "blocked" in caplog.text


async def test_a_busy_interpreter_does_not_cost_a_lease(driver):
    """A handler that computes in Python all the time shares the interpreter with the heartbeat."""
    lease = timedelta(seconds=1)

    def handler(ctx, job):
        until = clock.monotonic() + 2.5
        while clock.monotonic() < until:
            sum(range(100))

    floor = Floor(driver, lease=lease)
    floor.worker.register("work", handler)
    job_id = await floor.put()
    await asyncio.wait_for(floor.worker.arun(until_idle=True), SLOW)

    record = await floor.ended(job_id)
    assert (record.state, record.starts) == (JobState.COMPLETED, 1)


async def test_sigterm_stops_a_run_in_a_program_that_left_the_signal_alone(driver):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # coverage does not leave it alone
    try:
        floor = Floor(driver)
        task = asyncio.create_task(floor.worker.arun())
        async with asyncio.timeout(SLOW):
            while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                await clock.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, SLOW)

        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_program_that_handles_sigterm_itself_keeps_it(driver):
    mine = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        floor = Floor(driver)
        task = asyncio.create_task(floor.worker.arun())
        await running(floor)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        await stopped(floor, task)
    finally:
        signal.signal(signal.SIGTERM, mine)


async def test_stop_works_from_another_thread(driver):
    floor = Floor(driver)
    task = asyncio.create_task(floor.worker.arun())
    await running(floor)
    threading.Thread(target=floor.worker.stop).start()
    await asyncio.wait_for(task, SLOW)


async def test_nothing_of_a_worker_is_left_after_its_run(driver):
    def handler(ctx, job):
        return None

    before = set(threading.enumerate())
    floor = Floor(driver)
    floor.worker.register("work", handler)
    for _ in range(3):
        await floor.put()
    await asyncio.wait_for(floor.worker.arun(until_idle=True), SLOW)

    async with asyncio.timeout(SLOW):
        while set(threading.enumerate()) - before:
            await clock.sleep(0.01)
    assert len(asyncio.all_tasks()) == 1


async def test_only_the_stores_own_clock_counts_in_production(driver):
    """R000-15 read with the model: without a clock of its own the worker passes none."""
    nows = []
    reserve = driver.do_reserve

    async def noted(claim, now):
        nows.append(now)
        return await reserve(claim, now)

    driver.do_reserve = noted
    await asyncio.wait_for(Floor(driver).worker.arun(until_idle=True), SLOW)

    assert nows == [None]
