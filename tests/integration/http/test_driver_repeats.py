"""A reply that is lost on its way: the call is sent again, and done once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import EnqueueResult, Settled
from taskharbor.errors import DriverUnavailable, JobNotInflight
from taskharbor.model.settlement import Ack, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import claim, new_job, new_jobs
from taskharbor.testing.http_server import HttpServer, fresh_http_url
from tests.integration.http.http_fixture import Proxy, proxy_to, record_of


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with proxy_to(fresh_http_url()) as proxy:
        yield proxy


@pytest.fixture
async def driver(proxy: Proxy) -> AsyncIterator[Driver]:
    async with connect(proxy.url) as driver:
        yield driver


@pytest.mark.parametrize("lost", ["reply", "request"])
async def test_an_enqueue_whose_message_was_lost_makes_one_job_and_is_answered_as_ever(driver, proxy, lost):
    proxy.lose.append(("enqueue", lost))

    answers = await driver.enqueue(new_jobs(3))

    assert [answer.result for answer in answers] == [EnqueueResult.CREATED] * 3
    assert (await driver.count())["kit"].total == 3
    assert proxy.seen.count("enqueue") == 2


@pytest.mark.parametrize("lost", ["reply", "request"])
async def test_a_settlement_whose_message_was_lost_counts_once(driver, proxy, lost):
    await driver.enqueue([new_job(max_attempts=5)])
    [job] = (await driver.reserve(claim())).jobs
    proxy.lose.append(("settle", lost))

    [answer] = await driver.settle([Retry(job.lease, reason="broken")])

    assert isinstance(answer, Settled)
    record = await record_of(driver, job.id)
    assert (record.attempts, record.state, record.version) == (1, JobState.READY, job.version + 1)


@pytest.mark.parametrize("lost", ["reply", "request"])
async def test_a_claim_whose_message_was_lost_is_handed_out_once(driver, proxy, lost):
    await driver.enqueue(new_jobs(5))
    proxy.lose.append(("reserve", lost))

    jobs = (await driver.reserve(claim(limit=2))).jobs

    assert len(jobs) == 2
    assert (await driver.count())["kit"].running == 2
    assert [job.starts for job in jobs] == [1, 1]
    answers = await driver.settle([Ack(job.lease) for job in jobs])
    assert all(isinstance(answer, Settled) for answer in answers)


@pytest.mark.parametrize("lost", ["reply", "request"])
async def test_an_exchange_whose_message_was_lost_settles_and_claims_once(driver, proxy, lost):
    await driver.enqueue(new_jobs(5))
    jobs = (await driver.reserve(claim(limit=2))).jobs
    proxy.lose.append(("exchange", lost))

    answer = await driver.exchange([Ack(job.lease) for job in jobs], claim(limit=2))

    assert [type(settled) for settled in answer.settled] == [Settled, Settled]
    counts = (await driver.count())["kit"]
    assert (counts.completed, counts.running, counts.ready) == (2, 2, 1)


async def test_a_call_that_is_lost_twice_may_have_been_done_and_says_so(driver, proxy):
    await driver.enqueue(new_jobs(1))
    [job] = (await driver.reserve(claim())).jobs
    proxy.lose += [("settle", "reply"), ("settle", "reply")]

    with pytest.raises(DriverUnavailable) as error:
        await driver.settle([Ack(job.lease)])

    assert error.value.done is None
    assert (await record_of(driver, job.id)).settled_token == job.token
    [again] = await driver.settle(
        [Ack(job.lease)]
    )  # a new call: recognised by settled_token, as on any store
    assert isinstance(again, JobNotInflight)


async def test_a_blocking_enqueue_whose_reply_was_lost_makes_one_job(driver, proxy):
    job = new_job()
    await asyncio.to_thread(driver.enqueue_blocking, new_jobs(1))
    proxy.lose.append(("enqueue", "reply"))

    [answer] = await asyncio.to_thread(driver.enqueue_blocking, [job])

    assert answer.result is EnqueueResult.CREATED
    assert (await driver.count())["kit"].total == 2


async def test_one_caller_cannot_ask_for_the_answer_of_another(driver, proxy):
    """The id of a call says nothing by itself: another handle with the same claim gets other jobs."""
    await driver.enqueue(new_jobs(2))
    [mine] = (await driver.reserve(claim())).jobs

    async with connect(proxy.url) as other:
        [theirs] = (await other.reserve(claim())).jobs

    assert mine.id != theirs.id


async def test_a_restarted_server_does_not_guess_about_a_settlement_that_it_never_saw(tmp_path):
    with HttpServer(f"sqlite:///{tmp_path}/jobs.db") as server:
        async with proxy_to(server.url) as proxy, connect(proxy.url) as driver:
            await driver.enqueue(new_jobs(1))
            [job] = (await driver.reserve(claim())).jobs
            proxy.lose.append(("settle", "reply"))
            server.kill()
            call = asyncio.ensure_future(driver.settle([Ack(job.lease)]))
            with pytest.raises(DriverUnavailable) as error:
                await call

            assert error.value.done is None
            await asyncio.to_thread(server.start)
            record = await record_of(driver, job.id)
            assert record.state is JobState.RUNNING
            [answer] = await driver.settle([Ack(job.lease)])
            assert isinstance(answer, Settled)


async def test_one_of_several_servers_does_not_guess_about_what_another_one_did(tmp_path):
    """Behind one address, each call goes to any of them: done by one, asked of the other."""
    store = f"sqlite:///{tmp_path}/jobs.db?durability=normal"
    with HttpServer(store) as one, HttpServer(store) as two:
        async with proxy_to(one.url) as proxy, connect(proxy.url) as driver:
            await driver.enqueue(new_jobs(1))
            proxy.others.append(two.url)
            [job] = (await driver.reserve(claim())).jobs
            await driver.info()
            proxy.others.append(two.url)
            proxy.lose.append(("settle", "reply"))

            with pytest.raises(DriverUnavailable) as error:
                await driver.settle([Ack(job.lease)])

            assert error.value.done is None
            assert (await record_of(driver, job.id)).settled_token == job.token
