"""How many jobs a worker holds: more than its slots only while jobs are short and plenty."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from taskharbor.drivers.messages import Claim
from taskharbor.model.state import JobState
from taskharbor.worker.leased_jobs import MOST_AHEAD, HeldLimit


async def nothing(ctx, job):
    return None


def on_a_store_that_takes(harness, seconds):
    """Calls that take time: without it nothing does in virtual time, and there is no pace to see."""

    def slowly():
        return harness.clock.sleep(seconds)

    harness.driver.before = {"settle": slowly, "reserve": slowly}


def largest_batch(harness):
    return max(len(settlements) for settlements, _ in harness.driver.named("settle"))


async def test_short_jobs_are_claimed_ahead_of_free_slots(harness):
    on_a_store_that_takes(harness, 0.002)
    ids = await harness.put_many(400)
    await harness.run_until_idle(harness.worker({"work": nothing}, concurrency=10))

    assert largest_batch(harness) > 30
    assert {(await harness.job(job_id)).state for job_id in ids} == {JobState.COMPLETED}


async def test_with_a_prefetch_of_0_no_job_waits_in_the_process(harness):
    on_a_store_that_takes(harness, 0.002)
    await harness.put_many(200)
    await harness.run_until_idle(harness.worker({"work": nothing}, concurrency=10, prefetch=0))

    assert largest_batch(harness) == 10


async def test_long_jobs_are_claimed_only_into_free_slots(harness):
    async def handler(ctx, job):
        await ctx.clock.sleep(1)

    ids = await harness.put_many(60)
    async with harness.at_work(harness.worker({"work": handler}, concurrency=10)):
        for _ in range(5):
            await harness.pass_time(1)
            states = [(await harness.job(job_id)).state for job_id in ids]
            assert states.count(JobState.RUNNING) <= 10


async def test_jobs_claimed_ahead_are_released_when_long_ones_take_all_slots(harness):
    """They can run elsewhere, and the wait is not held against them."""
    go_on, names = asyncio.Event(), []

    async def handler(ctx, job):
        names.append(job.id)
        if len(names) > 300:
            await go_on.wait()

    on_a_store_that_takes(harness, 0.002)
    ids = await harness.put_many(600)
    async with harness.at_work(harness.worker({"work": handler}, concurrency=10)):
        await harness.pass_time(1)
        records = [await harness.job(job_id) for job_id in ids]
        running = [record for record in records if record.state is JobState.RUNNING]
        waiting = [record for record in records if record.state is JobState.READY]
        assert len(running) == 10
        assert len(waiting) == 290
        assert {(record.attempts, record.stalls) for record in waiting} == {(0, 0)}
        assert any(record.starts for record in waiting)  # some had been claimed ahead
        go_on.set()
        await harness.pass_time(1)
        assert {(await harness.job(job_id)).state for job_id in ids} == {JobState.COMPLETED}


async def test_jobs_that_were_released_unstarted_do_not_count_for_max_jobs(harness):
    go_on, names = asyncio.Event(), []

    async def handler(ctx, job):
        names.append(job.id)
        if len(names) > 300:
            await go_on.wait()

    on_a_store_that_takes(harness, 0.002)
    await harness.put_many(600)
    worker = harness.worker({"work": handler}, concurrency=10, max_jobs=500)
    task = harness.start(worker)
    await harness.pass_time(1)
    released = worker.counts["released"]
    go_on.set()
    await harness.until_done(task)

    assert released > 0
    assert len(names) == 500
    assert worker.counts["finished"] == 500 + worker.counts["released"]


def ended_at_pace(limit: HeldLimit, jobs_per_second: int, call_seconds: float = 0.001) -> None:
    limit.ended(1, call_seconds, 100.0)
    limit.ended(jobs_per_second, call_seconds, 101.0)


def test_a_worker_holds_what_it_ends_in_20_ms():
    limit = HeldLimit(10, None)
    assert limit.now == 10
    ended_at_pace(limit, 5000)
    assert limit.now == 100


def test_with_a_distant_store_it_holds_what_it_ends_in_four_calls():
    limit = HeldLimit(10, None)
    ended_at_pace(limit, 5000, call_seconds=0.015)
    assert limit.now == 300


def test_it_holds_one_job_for_each_slot_at_least_and_400_ahead_at_most():
    limit = HeldLimit(100, None)
    ended_at_pace(limit, 1000)
    assert limit.now == 100
    limit = HeldLimit(100, None)
    ended_at_pace(limit, 1_000_000)
    assert limit.now == MOST_AHEAD
    limit.reset()
    assert limit.now == 100


def test_more_slots_than_400_are_all_filled():
    limit = HeldLimit(1000, None)
    ended_at_pace(limit, 1_000_000)
    assert limit.now == 1000


async def test_beside_a_job_whose_worker_died_nothing_is_claimed_ahead(harness):
    """It may kill this worker, too, and what was claimed with it would be held against the others."""
    ids = await harness.put_many(200)
    claim = Claim(queues=("default",), worker_id="dead", limit=200, lease_for=timedelta(seconds=1))
    assert len((await harness.driver.reserve(claim, now=harness.clock.now())).jobs) == 200
    await harness.pass_time(2)
    on_a_store_that_takes(harness, 0.002)
    await harness.run_until_idle(harness.worker({"work": nothing}, concurrency=10))

    assert largest_batch(harness) == 10
    assert {(await harness.job(job_id)).stalls for job_id in ids} == {1}
