"""A claim that found nothing is parked: the job that comes next is there before its worker asks again."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim, Settled
from taskharbor.drivers.redis import parked_claim
from taskharbor.errors import DriverError
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import new_job, new_jobs

PATIENCE = 30.0
QUEUES = ("kit",)
CLAIM = Claim(queues=QUEUES, worker_id="worker-1", limit=50, lease_for=timedelta(seconds=40))
OTHER = Claim(queues=QUEUES, worker_id="worker-2", limit=50)


@asynccontextmanager
async def idle_worker(url, claim=CLAIM):
    """A handle that listens, and whose claim is parked at the server."""
    async with connect(url) as driver:
        hints = driver.wakeups(QUEUES, claim.worker_id)
        try:
            assert (await driver.reserve(claim)).jobs == []
            await until(lambda: claim_is_parked(driver))
            yield driver, hints
        finally:
            await hints.aclose()


async def claim_is_parked(driver):
    info = (await driver.primary.command("INFO", "clients")).decode()
    return driver._parked_claims.is_parked and "blocked_clients:0" not in info


async def until(is_so):
    async with asyncio.timeout(PATIENCE):
        while not await is_so():
            await asyncio.sleep(0.005)


async def is_in(driver, job_id, state):
    [record] = await driver.get([job_id])
    return record.state is state


@pytest.fixture
def patient(monkeypatch):
    """What came ahead is kept for as long as the test takes, however busy the machine is."""
    monkeypatch.setattr(
        parked_claim.ParkedClaim, "usable_until", property(lambda self: self.sent_at + 3600.0)
    )


@pytest.mark.usefixtures("patient")
async def test_a_job_that_comes_to_an_idle_worker_is_its_own_before_it_asks(own_server):
    async with connect(own_server.url) as client, idle_worker(own_server.url) as (driver, hints):
        [answer] = await client.enqueue([new_job()])
        async with asyncio.timeout(PATIENCE):
            await anext(hints)
        await until(lambda: is_in(client, answer.id, JobState.RUNNING))

        [job] = (await driver.reserve(CLAIM)).jobs

        assert (job.id, job.worker_id) == (answer.id, CLAIM.worker_id)
        assert job.lease_expires_at - job.started_at >= CLAIM.lease_for
        [settled] = await driver.settle([Ack(job.lease)])
        assert settled.state is JobState.COMPLETED


@pytest.mark.usefixtures("patient")
async def test_a_claim_finds_what_was_enqueued_before_it_whatever_is_parked(own_server):
    async with connect(own_server.url) as client, idle_worker(own_server.url) as (driver, _):
        for count in [1, 2, 30] * 8:
            await client.enqueue(new_jobs(count))
            jobs = (await driver.reserve(CLAIM)).jobs
            assert len(jobs) == count
            await driver.settle([Ack(job.lease) for job in jobs])
            assert (await driver.reserve(CLAIM)).jobs == []


@pytest.mark.usefixtures("patient")
async def test_settling_while_a_claim_is_parked_brings_what_that_makes_free(own_server):
    async with connect(own_server.url) as driver:
        await driver.configure_queue(QueueSettings(queue="kit", max_running=1))
        await driver.enqueue(new_jobs(2))
        hints = driver.wakeups(QUEUES, CLAIM.worker_id)
        [first] = (await driver.reserve(CLAIM)).jobs
        assert (await driver.reserve(CLAIM)).jobs == []
        await until(lambda: claim_is_parked(driver))

        answer = await driver.exchange([Ack(first.lease)], CLAIM)

        assert [one.state for one in answer.settled if isinstance(one, Settled)] == [JobState.COMPLETED]
        assert len(answer.claimed) == 1
        await hints.aclose()


@pytest.mark.usefixtures("patient")
async def test_what_came_ahead_is_given_back_when_its_worker_stops_listening(own_server):
    async with connect(own_server.url) as client:
        async with idle_worker(own_server.url) as (_, hints):
            [answer] = await client.enqueue([new_job()])
            await until(lambda: is_in(client, answer.id, JobState.RUNNING))
            await hints.aclose()

            await until(lambda: is_taken(client, OTHER, answer.id))

        [record] = await client.get([answer.id])
        assert record is not None
        assert (record.attempts, record.stalls) == (0, 0)


async def test_what_nobody_fetches_is_given_back_soon(own_server):
    async with connect(own_server.url) as client, idle_worker(own_server.url):
        [answer] = await client.enqueue([new_job()])
        await until(lambda: was_given_back(client, answer.id))

        [job] = (await client.reserve(OTHER)).jobs

        assert (job.id, job.attempts, job.stalls) == (answer.id, 0, 0)


async def was_given_back(driver, job_id):
    """Made, handed out, released: that is the third version."""
    [record] = await driver.get([job_id])
    return record.state is JobState.READY and record.version == 3


@pytest.mark.usefixtures("patient")
async def test_another_claim_than_the_parked_one_does_not_get_its_jobs(own_server):
    async with connect(own_server.url) as client, idle_worker(own_server.url) as (driver, _):
        [answer] = await client.enqueue([new_job()])
        await until(lambda: is_in(client, answer.id, JobState.RUNNING))

        await until(lambda: is_taken(driver, OTHER, answer.id))


async def is_taken(driver, claim, job_id):
    jobs = (await driver.reserve(claim)).jobs
    return [(job.id, job.worker_id) for job in jobs] == [(job_id, claim.worker_id)]


async def test_a_server_that_went_away_ends_a_parked_claim(own_server):
    async with connect(own_server.url) as client, idle_worker(own_server.url) as (driver, _):
        own_server.kill()
        own_server.start()
        await until(lambda: has_answered(client))
        [answer] = await client.enqueue([new_job()])

        await until(lambda: is_taken(driver, CLAIM, answer.id))


async def has_answered(driver):
    try:
        await driver.count()
    except DriverError:
        return False
    return True
