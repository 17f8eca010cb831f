"""Cancel and shutdown: R003-21 to R003-25, C05 to C07, C09."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

from taskharbor.events import AttemptFinished, HandlerAbandoned, WorkerStopped
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.state import JobState


def sleeps(seconds, seen=None):
    async def handler(ctx, job):
        try:
            await ctx.clock.sleep(seconds)
        finally:
            if seen is not None:
                seen.append((ctx.cancelled.reason, ctx.clock.monotonic()))

    return handler


class Stubborn:
    """A handler that ignores every cancellation until it is let go."""

    def __init__(self):
        self.let_go = asyncio.Event()

    async def __call__(self, ctx, job):
        while not self.let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.let_go.wait()


async def cancel(harness, *ids):
    return await harness.driver.cancel(list(ids), now=harness.clock.now())


# ------------------------------------------------------------------ cancel


async def test_a_running_handler_is_cancelled_by_a_wakeup_at_once(harness):
    """R003-24"""
    seen: list[Any] = []
    job_id = await harness.put()
    async with harness.at_work(harness.worker({"work": sleeps(300, seen)})):
        await harness.pass_time(1)
        await cancel(harness, job_id)
        await harness.pass_time(0.01)
        record = await harness.job(job_id)

    assert seen == [("cancel", 1.0)]
    assert (record.state, record.attempts) == (JobState.CANCELLED, 0)


async def test_without_a_wakeup_the_next_heartbeat_notices(harness):
    """R003-24"""
    seen: list[Any] = []
    job_id = await harness.put()
    harness.driver._store.subscriptions.cancel = lambda *_: None  # the hint is lost
    async with harness.at_work(harness.worker({"work": sleeps(300, seen)})):
        await harness.pass_time(1)
        await cancel(harness, job_id)
        await harness.pass_time(10)

    assert [reason for reason, _ in seen] == ["cancel"]
    assert (await harness.job(job_id)).state is JobState.CANCELLED


async def test_a_wrong_hint_cancels_nothing(harness):
    """Wake-ups may be wrong: only the lease says whether a cancel was requested."""
    seen: list[Any] = []
    job_id = await harness.put()
    worker = harness.worker({"work": sleeps(5, seen)})
    async with harness.at_work(worker):
        await harness.pass_time(1)
        harness.driver._store.subscriptions.cancel(job_id, worker.id)
        await harness.pass_time(5)

    assert seen == [(None, 5.0)]
    assert (await harness.job(job_id)).state is JobState.COMPLETED


async def test_a_cancel_known_before_the_start_means_that_it_never_starts(harness):
    """R003-21"""
    started = []

    async def handler(ctx, job):
        started.append(job.id)
        await ctx.clock.sleep(5)

    first, second = await harness.put_many(2)
    async with harness.at_work(harness.worker({"work": handler}, concurrency=1, prefetch=1)):
        await harness.pass_time(1)
        await cancel(harness, second)
        await harness.pass_time(30)

    assert started == [first]
    assert (await harness.job(second)).state is JobState.CANCELLED


async def test_cancel_beats_success_and_failure(harness):
    """R003-22, R003-23: even when the handler swallows the cancellation and returns, or raises."""

    async def returns(ctx, job):
        try:
            await ctx.clock.sleep(300)
        except asyncio.CancelledError:
            return "done anyway"

    async def raises(ctx, job):
        try:
            await ctx.clock.sleep(300)
        except asyncio.CancelledError:
            raise ValueError("broken") from None

    ids = [await harness.put("returns"), await harness.put("raises", timeout=timedelta(seconds=60))]
    async with harness.at_work(harness.worker({"returns": returns, "raises": raises})):
        await harness.pass_time(1)
        await cancel(harness, *ids)
        await harness.pass_time(100)

    for job_id in ids:
        record = await harness.job(job_id)
        assert (record.state, record.attempts, record.result) == (JobState.CANCELLED, 0, None)


async def test_a_cancel_that_arrives_after_the_end_was_decided_still_wins(harness):
    """R003-22"""
    job_id = await harness.put()

    async def handler(ctx, job):
        await cancel(harness, job_id)
        return "too late"

    await harness.run_until_idle(harness.worker({"work": handler}))

    record = await harness.job(job_id)
    assert (record.state, record.result) == (JobState.CANCELLED, None)
    assert [(event.outcome, event.state) for event in harness.heard(AttemptFinished)] == [
        ("completed", "cancelled")
    ]


async def test_a_cancelled_job_that_ignores_it_keeps_its_lease_until_its_time_limit(harness):
    stubborn = Stubborn()
    job_id = await harness.put(timeout=timedelta(seconds=50))
    async with harness.at_work(harness.worker({"work": stubborn}, concurrency=1)):
        await harness.pass_time(1)
        await cancel(harness, job_id)
        await harness.pass_time(40)
        assert (await harness.job(job_id)).state is JobState.RUNNING
        await harness.pass_time(15)
        assert (await harness.job(job_id)).state is JobState.CANCELLED
    stubborn.let_go.set()


async def test_cancelling_a_waiting_retry_takes_it_out(harness):
    """R003-25"""
    runs = []

    async def fails(ctx, job):
        runs.append(job.id)
        raise ValueError

    job_id = await harness.put()
    async with harness.at_work(harness.worker({"work": fails}, retry=RetryPolicy(base=timedelta(seconds=5)))):
        await harness.pass_time(1)
        await cancel(harness, job_id)
        await harness.pass_time(60)

    assert (len(runs), (await harness.job(job_id)).state) == (1, JobState.CANCELLED)


# ------------------------------------------------------------------ shutdown


async def test_a_job_shorter_than_the_grace_time_is_done(harness):
    """C05"""
    job_id = await harness.put()
    worker = harness.worker({"work": sleeps(10)}, grace=timedelta(seconds=30))
    task = harness.start(worker)
    await harness.pass_time(1)
    worker.stop()
    await harness.until_done(task)

    assert (await harness.job(job_id)).state is JobState.COMPLETED
    assert harness.heard(WorkerStopped)[0].released == 0


async def test_a_job_longer_than_the_grace_time_is_notified_and_handed_back_untouched(harness):
    """C06"""
    seen: list[Any] = []
    job_id = await harness.put()
    worker = harness.worker({"work": sleeps(3600, seen)}, grace=timedelta(seconds=30))
    task = harness.start(worker)
    await harness.pass_time(1)
    worker.stop()
    await harness.until_done(task)

    record = await harness.job(job_id)
    assert (record.state, record.attempts, record.stalls) == (JobState.READY, 0, 0)
    assert seen == [("shutdown", 31.0)]
    assert harness.clock.monotonic() <= 32.0, "grace and a second"
    assert harness.heard(WorkerStopped)[0].released == 1


async def test_a_second_stop_releases_at_once(harness):
    """C07"""
    job_id = await harness.put()
    worker = harness.worker({"work": sleeps(3600)}, grace=timedelta(hours=1))
    task = harness.start(worker)
    await harness.pass_time(1)
    worker.stop()
    await harness.pass_time(5)
    worker.stop(now=True)
    await harness.until_done(task)

    assert (await harness.job(job_id)).state is JobState.READY
    assert harness.clock.monotonic() <= 7.0


async def test_a_handler_that_ignores_the_shutdown_is_left_behind_and_its_job_released(harness):
    """C07"""
    stubborn = Stubborn()
    job_id = await harness.put()
    worker = harness.worker({"work": stubborn}, grace=timedelta(seconds=1))
    task = harness.start(worker)
    await harness.pass_time(1)
    worker.stop()
    await harness.until_done(task)

    assert (await harness.job(job_id)).state is JobState.READY
    assert harness.clock.monotonic() <= 3.0
    assert [event.reason for event in harness.heard(HandlerAbandoned)] == ["shutdown"]
    stubborn.let_go.set()


async def test_a_handler_that_finishes_during_the_last_second_is_done(harness):
    async def handler(ctx, job):
        try:
            await ctx.clock.sleep(3600)
        except asyncio.CancelledError:
            return "saved"

    job_id = await harness.put()
    worker = harness.worker({"work": handler}, grace=timedelta(seconds=1))
    task = harness.start(worker)
    await harness.pass_time(1)
    worker.stop()
    await harness.until_done(task)

    record = await harness.job(job_id)
    assert (record.state, record.result) == (JobState.COMPLETED, b'"saved"')


async def test_heartbeats_go_on_while_draining(harness):
    """C09: longer than the lease, shorter than the grace time."""
    job_id = await harness.put()
    worker = harness.worker({"work": sleeps(100)}, grace=timedelta(seconds=200))
    task = harness.start(worker)
    await harness.pass_time(1)
    worker.stop()
    await harness.until_done(task)

    record = await harness.job(job_id)
    assert (record.state, record.stalls, record.starts) == (JobState.COMPLETED, 0, 1)


async def test_a_claim_that_answers_after_the_stop_is_handed_back(harness):
    slow = asyncio.Event()
    job_id = await harness.put()
    worker = harness.worker({"work": sleeps(1)})
    harness.driver.before["reserve"] = slow.wait
    task = harness.start(worker)
    await harness.pass_time(1)
    worker.stop()
    await harness.pass_time(0.5)
    slow.set()
    await harness.until_done(task)

    record = await harness.job(job_id)
    assert (record.state, record.attempts, record.stalls, record.starts) == (JobState.READY, 0, 0, 1)


async def test_cancelling_the_run_releases_what_it_holds(harness):
    job_id = await harness.put()
    task = harness.start(harness.worker({"work": sleeps(3600)}))
    await harness.pass_time(1)
    task.cancel()
    for _ in range(30):
        await harness.pass_time(0.1)

    assert task.cancelled()
    assert (await harness.job(job_id)).state is JobState.READY
    harness._tasks.clear()
