"""Cancelling, on every store: it reaches the worker that runs the job, and is the end in every race."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from taskharbor import Client
from taskharbor.drivers.messages import CancelResult
from taskharbor.errors import Unrecoverable
from taskharbor.model.state import JobState
from taskharbor.tasks import job_handler
from taskharbor.worker import Worker
from tests.integration.scheduler.scheduler_fixture import AT_ONCE
from tests.integration.worker import handlers
from tests.integration.worker.processes import SLOW

# The next heartbeat is far away in all of these: what reaches the handler is the wake-up alone.
LONG_LEASE = timedelta(minutes=5)


async def cancelled(harness, job_id):
    [answer] = await harness.driver.cancel([job_id])
    return answer.result


# ------------------------------------------------------------------ the handler is notified at once


async def test_a_handle_cancels_a_running_coroutine_without_waiting_for_a_heartbeat(harness):
    has_begun, notified = asyncio.Event(), asyncio.Event()

    async def handler(ctx, job):
        has_begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            assert ctx.cancelled.reason == "cancel"
            notified.set()

    async with harness.working(handler, lease=LONG_LEASE):
        job_id = await harness.add()
        await asyncio.wait_for(has_begun.wait(), SLOW)
        handle = await Client(harness.driver).aget(job_id)
        answer = await handle.acancel()
        await asyncio.wait_for(notified.wait(), SLOW)
        record = await harness.ended(job_id)

    assert answer.result is CancelResult.REQUESTED
    assert (record.state, record.attempts, record.stalls) == (JobState.CANCELLED, 0, 0)


async def test_a_process_handler_is_ended_even_when_it_does_not_listen(harness, tmp_path):
    pid_file = tmp_path / "pid"
    patience = timedelta(seconds=0.2)
    async with harness.working(handlers.loops_in_c, run_in="process", lease=LONG_LEASE, patience=patience):
        job_id = await harness.add(payload=str(pid_file).encode())
        await harness.until(lambda: pid_file.exists() and pid_file.read_text() != "", "the handler")

        assert await cancelled(harness, job_id) is CancelResult.REQUESTED
        record = await harness.ended(job_id)

    assert (record.state, record.attempts, record.stalls) == (JobState.CANCELLED, 0, 0)


async def test_a_thread_handler_sees_it(harness):
    has_begun = asyncio.Event()
    loop, notified = asyncio.get_running_loop(), []

    def handler(ctx, job):
        loop.call_soon_threadsafe(has_begun.set)
        notified.append(ctx.cancelled.wait_blocking(SLOW))

    async with harness.working(handler, lease=LONG_LEASE):
        job_id = await harness.add()
        await asyncio.wait_for(has_begun.wait(), SLOW)
        await cancelled(harness, job_id)
        record = await harness.ended(job_id)

    assert (record.state, notified) == (JobState.CANCELLED, [True])


async def test_a_cancel_that_comes_before_the_first_heartbeat_is_not_lost(harness):
    """The heart has a handle of its own, and a store may take its time to open one."""
    has_begun, notified = asyncio.Event(), asyncio.Event()
    may_open = threading.Event()
    driver = harness.driver.another()
    another = driver.another

    def slow_to_open():
        handle = another()
        do_open = handle.do_open

        async def late_open():
            await asyncio.to_thread(may_open.wait, SLOW)
            await do_open()

        handle.do_open = late_open
        return handle

    async def handler(ctx, job):
        has_begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            notified.set()

    driver.another = slow_to_open
    async with working_on(driver, handler, lease=LONG_LEASE, unknown_types="fail"):
        job_id = await harness.add()
        await asyncio.wait_for(has_begun.wait(), SLOW)
        await cancelled(harness, job_id)
        await harness.ended(await harness.add("nothing"))  # hints come in order: that of the cancel is read
        may_open.set()
        await asyncio.wait_for(notified.wait(), SLOW)
        assert (await harness.ended(job_id)).state is JobState.CANCELLED


async def test_the_command_line_cancels_jobs_in_other_processes(shared_harness):
    """A coroutine, and a handler in a process of its own."""
    harness = shared_harness
    harness.start_worker(lease=300, patience=0.2)
    ids = [await harness.add(type_name, payload=b"600") for type_name in ("hold", "grind")]
    for job_id in ids:
        await harness.note("started", job_id)

    command = [sys.executable, "-m", "taskharbor", "jobs", "cancel", *ids, "--url", harness.url]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert [record.state for record in await harness.all_ended(ids)] == [JobState.CANCELLED] * 2


# ------------------------------------------------------------------ races


@asynccontextmanager
async def settling(harness, handler, **options) -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """A worker whose settlements wait: (one is on its way, it may go on)."""
    on_its_way, may_go_on = asyncio.Event(), asyncio.Event()
    driver = harness.driver.another()
    exchange, settle = driver.exchange, driver.settle

    async def wait() -> None:
        on_its_way.set()
        await may_go_on.wait()

    async def late_exchange(settlements, claim, **more):
        await wait()
        return await exchange(settlements, claim, **more)

    async def late_settle(settlements, **more):
        await wait()
        return await settle(settlements, **more)

    driver.exchange, driver.settle = late_exchange, late_settle
    async with working_on(driver, handler, **options):
        try:
            yield on_its_way, may_go_on
        finally:
            may_go_on.set()


@asynccontextmanager
async def working_on(driver, handler, **options) -> AsyncIterator[None]:
    """A worker on this very handle of the store."""
    worker = Worker(driver, retry=AT_ONCE, **options)
    worker.add(job_handler("work", handler))
    task = asyncio.create_task(worker.arun())
    try:
        yield
    finally:
        worker.stop(now=True)
        await asyncio.wait_for(task, SLOW)


async def succeed(ctx, job):
    return "done"


async def fail(ctx, job):
    raise ValueError("no luck")


async def give_up(ctx, job):
    raise Unrecoverable("never")


async def overrun(ctx, job):
    await asyncio.sleep(3600)


@pytest.mark.parametrize("handler", [succeed, fail, give_up, overrun])
async def test_a_cancel_beats_a_settlement_that_is_already_on_its_way(harness, handler):
    """Whatever the handler's outcome: a result, a failure with tries left, the last failure, a timeout."""
    async with settling(harness, handler) as (on_its_way, may_go_on):
        job_id = await harness.add(timeout=timedelta(seconds=0.1), max_attempts=2)
        await asyncio.wait_for(on_its_way.wait(), SLOW)

        assert await cancelled(harness, job_id) is CancelResult.REQUESTED
        may_go_on.set()
        record = await harness.ended(job_id)

    assert (record.state, record.result, record.attempts) == (JobState.CANCELLED, None, 0)
    assert (await harness.driver.count())["default"].failed == 0


@pytest.mark.parametrize("delay", [None, timedelta(hours=1)], ids=["ready", "scheduled"])
async def test_a_job_that_is_cancelled_before_it_starts_never_starts(harness, delay):
    job_id = await harness.add(delay=delay)
    assert await cancelled(harness, job_id) is CancelResult.CANCELLED

    async with harness.working(succeed):
        await harness.ended(await harness.add())  # somebody is at work, and has claimed
        record = await harness.job(job_id)

    assert (record.state, record.starts) == (JobState.CANCELLED, 0)


async def test_a_job_that_waits_for_its_next_try_is_cancelled_and_not_tried(harness):
    async with harness.working(fail, retry=AT_ONCE):
        job_id = await harness.add(max_attempts=9, min_backoff=timedelta(hours=1))
        await harness.when(job_id, lambda record: record.attempts == 1)

        assert await cancelled(harness, job_id) is CancelResult.CANCELLED
        record = await harness.job(job_id)

    assert (record.state, record.starts) == (JobState.CANCELLED, 1)


async def test_a_blocked_job_and_a_merged_one_are_cancelled(harness):
    """Merged: the one it became part of is cancelled, by the id that it had."""
    may_fail = asyncio.Event()

    async def handler(ctx, job):
        await may_fail.wait()
        raise ValueError("again")

    async with harness.working(handler):
        first = await harness.add(key=b"k", max_attempts=9, min_backoff=timedelta(hours=1))
        await harness.when(first, lambda record: record.state is JobState.RUNNING)
        second = await harness.add(key=b"k", max_attempts=9, min_backoff=timedelta(hours=1))
        assert await cancelled(harness, second) is CancelResult.CANCELLED
        assert (await harness.job(second)).state is JobState.CANCELLED
        assert (await harness.job(first)).state is JobState.RUNNING

        third = await harness.add(key=b"k", delay=timedelta(hours=1))
        may_fail.set()
        await harness.when(first, lambda record: record.state is JobState.SCHEDULED)
        assert await cancelled(harness, third) is CancelResult.CANCELLED

    assert (await harness.job(first)).state is JobState.CANCELLED


async def test_a_job_whose_worker_died_is_cancelled_by_the_first_that_finds_it(shared_harness):
    harness = shared_harness
    worker = harness.start_worker(lease=1)
    job_id = await harness.add("hold", payload=b"600")
    await harness.note("started", job_id)
    worker.kill()
    worker.wait()

    assert await cancelled(harness, job_id) is CancelResult.REQUESTED
    async with harness.working(succeed):
        record = await harness.ended(job_id)

    assert (record.state, record.starts, record.stalls) == (JobState.CANCELLED, 1, 0)


async def test_cancelling_twice_and_too_late_changes_nothing(harness):
    async with harness.working(succeed):
        job_id = await harness.add()
        done = await harness.ended(job_id)

    assert await cancelled(harness, job_id) is CancelResult.ALREADY_OVER
    assert await harness.job(job_id) == done


async def test_many_cancels_race_with_many_ends_and_each_has_one_answer(harness):
    """A cancel that was accepted is the end; one that came too late says so."""

    async def handler(ctx, job):
        await asyncio.sleep(0.001)

    async with harness.working(handler, concurrency=8):
        ids = await harness.add_many(60)
        answers = {}
        for job_id in ids:
            answers[job_id] = await cancelled(harness, job_id)
        records = {record.id: record for record in await harness.all_ended(ids)}

    for job_id, answer in answers.items():
        is_late = answer is CancelResult.ALREADY_OVER
        assert records[job_id].state is (JobState.COMPLETED if is_late else JobState.CANCELLED), answer


@pytest.mark.long
async def test_a_cancel_reaches_a_running_handler_within_a_second(harness):
    """The figure itself; on a machine that does nothing else."""
    has_begun, notified_at = asyncio.Event(), []

    async def handler(ctx, job):
        has_begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            notified_at.append(time.monotonic())

    async with harness.working(handler, lease=LONG_LEASE):
        for _ in range(20):
            has_begun.clear()
            job_id = await harness.add()
            await asyncio.wait_for(has_begun.wait(), SLOW)
            asked = time.monotonic()
            await cancelled(harness, job_id)
            await harness.ended(job_id)
            assert notified_at[-1] - asked < 1.0


@pytest.mark.long
async def test_a_cancel_ends_a_handler_in_a_process_of_its_own_within_a_second(harness, tmp_path):
    """The same figure, to the end of its job."""
    async with harness.working(handlers.loops_forever, run_in="process", lease=LONG_LEASE):
        for number in range(5):
            begun = tmp_path / str(number)
            job_id = await harness.add(payload=str(begun).encode())
            await harness.until(begun.exists, "the handler")
            asked = time.monotonic()
            await cancelled(harness, job_id)
            record = await harness.ended(job_id)
            assert (record.state, time.monotonic() - asked < 1.0) == (JobState.CANCELLED, True)
