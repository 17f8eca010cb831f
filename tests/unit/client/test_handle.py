"""Handles: waiting for a job, and what comes of it."""

import asyncio
import itertools
from datetime import timedelta

import pytest

from taskharbor import Client, JobHandle
from taskharbor.drivers import connect
from taskharbor.errors import InvalidArgument, JobFailed, JobNotFound
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Cancelled, Fail
from taskharbor.model.state import JobState
from taskharbor.tasks import JobRequest
from taskharbor.testing.clock import SimulatedClock


@pytest.fixture
def clock():
    return SimulatedClock()


@pytest.fixture
async def driver(clock):
    async with connect("memory://", clock=clock) as driver:
        yield driver


@pytest.fixture
def client(driver, clock):
    return Client(driver, clock=clock)


async def enqueued_and_taken(client, driver, clock):
    job = await client.aenqueue(JobRequest(type="t"))
    record = await driver.reserve_one("default", clock.now(), timedelta(hours=1))
    return job, record.lease


async def test_a_result_is_there_once_the_job_is_over(client, driver, clock):
    job, lease = await enqueued_and_taken(client, driver, clock)
    waiting = asyncio.create_task(job.aresult())
    await clock.pass_time("10s")
    assert not waiting.done()

    await driver.settle([Ack(lease, b'{"answer":42}')], now=clock.now())
    await clock.pass_time("2s")

    assert waiting.result() == {"answer": 42}
    assert job.state is JobState.COMPLETED


async def test_a_job_that_returned_nothing_results_in_none(client, driver, clock):
    job, lease = await enqueued_and_taken(client, driver, clock)
    await driver.settle([Ack(lease)], now=clock.now())

    assert await job.aresult() is None


async def test_a_failed_job_raises_with_its_reason(client, driver, clock):
    job, lease = await enqueued_and_taken(client, driver, clock)
    await driver.settle([Fail(lease, "the letter box is full")], now=clock.now())

    with pytest.raises(JobFailed, match="ended failed: the letter box is full") as caught:
        await job.aresult()

    assert (caught.value.job_id, caught.value.state) == (job.id, "failed")


async def test_a_cancelled_job_raises_too(client, driver, clock):
    job, lease = await enqueued_and_taken(client, driver, clock)
    await driver.settle([Cancelled(lease)], now=clock.now())

    with pytest.raises(JobFailed, match="ended cancelled"):
        await job.aresult()


async def test_waiting_ends_with_its_timeout_and_the_job_goes_on(client, driver, clock):
    job, lease = await enqueued_and_taken(client, driver, clock)
    waiting = asyncio.create_task(job.aresult(timeout="3s"))

    await clock.pass_time("2.9s")
    assert not waiting.done()
    await clock.pass_time("0.1s")

    with pytest.raises(TimeoutError, match="is still running after 3 s; the job continues"):
        waiting.result()
    await driver.settle([Ack(lease, b"1")], now=clock.now())
    assert await job.aresult(timeout=1) == 1


async def test_the_store_is_asked_ever_more_rarely_but_at_least_once_a_second(client, driver, clock):
    job, _ = await enqueued_and_taken(client, driver, clock)
    asked = []
    look = driver.do_get

    async def counted(ids, now):
        asked.append(clock.monotonic())
        return await look(ids, now)

    driver.do_get = counted
    waiting = asyncio.create_task(job.aresult())
    await clock.pass_time("60s")
    waiting.cancel()

    pauses = [round(after - before, 6) for before, after in itertools.pairwise(asked)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.01
    assert pauses[-1] == 1.0
    assert len(asked) < 80


async def test_a_job_whose_retention_is_over_is_not_found(client, driver, clock):
    await driver.configure_queue(QueueSettings(queue="default", retention=Retention(completed=timedelta(0))))
    job, lease = await enqueued_and_taken(client, driver, clock)
    await driver.settle([Ack(lease, b"1")], now=clock.now())

    with pytest.raises(JobNotFound):
        await job.aresult()


async def test_a_handle_follows_the_job_that_absorbed_its_own(client, driver, clock):
    running = await client.aenqueue(JobRequest(type="t", key="k", payload=1))
    record = await driver.reserve_one("default", clock.now(), timedelta(seconds=1))
    blocked = await client.aenqueue(JobRequest(type="t", key="k", payload=2))
    assert (await blocked.arefresh()).state is JobState.BLOCKED
    assert record.id == running.id

    clock.advance("2s")
    await driver.reclaim(now=clock.now())
    record = await driver.reserve_one("default", clock.now(), timedelta(seconds=1))
    await driver.settle([Ack(record.lease, b'"done"')], now=clock.now())

    assert await blocked.aresult() == "done"


async def test_after_cancel_and_retry_the_state_is_looked_up_again(client):
    job = await client.aenqueue(JobRequest(type="t"))
    await job.arefresh()

    await job.acancel()
    assert (await job.arefresh()).state is JobState.CANCELLED
    await job.aretry(delay="1h")
    assert (await job.arefresh()).state is JobState.SCHEDULED


async def test_a_timeout_must_be_a_duration(client):
    job = await client.aenqueue(JobRequest(type="t"))

    with pytest.raises(InvalidArgument, match="timeout="):
        await job.aresult(timeout="a while")


async def test_handles_of_one_job_are_equal(client):
    job = await client.aenqueue(JobRequest(type="t"))
    same: JobHandle[object] = JobHandle(client, job.id)

    assert {job, same} == {job}
    assert job != "something else"
