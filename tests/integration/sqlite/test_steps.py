"""Steps that touch several jobs at once, where one of them changes what the next one finds."""

from datetime import timedelta

import pytest

from taskharbor.drivers.messages import Claim, Speculated
from taskharbor.errors import InvalidArgument
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings
from taskharbor.model.state import JobState
from tests.integration.sqlite.stores import NOW, claim, driver_on, is_sound, new_job

MINUTE = timedelta(minutes=1)


@pytest.fixture
async def driver(tmp_path):
    async with driver_on(tmp_path / "jobs.db") as driver:
        yield driver
    assert is_sound(tmp_path / "jobs.db")


async def test_a_copy_that_expires_with_its_failing_original_ends_once(driver):
    await driver.enqueue([new_job(max_stalls=1)], now=NOW)
    [original] = await driver.reserve(claim(1), now=NOW)
    speculated = await driver.speculate(original.id, now=NOW)
    other = Claim(queues=("default",), worker_id="worker-2", lease_for=timedelta(seconds=30))
    [copy] = await driver.reserve(other, now=NOW)
    assert isinstance(speculated, Speculated)
    assert copy.id == speculated.copy_id

    answers = await driver.reclaim(now=NOW + MINUTE)

    assert [(answer.id, answer.result) for answer in answers] == [(original.id, "failed")]
    [ended, dropped] = await driver.get([original.id, copy.id], now=NOW + MINUTE)
    assert ended is not None
    assert dropped is not None
    assert (ended.state, dropped.state) == (JobState.FAILED, JobState.CANCELLED)
    assert dropped.version == copy.version + 1


async def test_what_can_never_pass_a_rate_comes_before_what_cannot_pass_now(driver):
    await driver.configure_queue(QueueSettings(queue="default", enqueue_rate=RateLimit(3, MINUTE)), now=NOW)
    await driver.configure_queue(QueueSettings(queue="*", enqueue_rate=RateLimit(2, MINUTE)), now=NOW)
    await driver.enqueue([new_job()], now=NOW)

    with pytest.raises(InvalidArgument, match="never pass"):
        await driver.enqueue([new_job() for _ in range(3)], now=NOW)


async def test_a_job_taken_out_of_the_middle_of_a_run_leaves_its_neighbours_in_order(driver):
    jobs = [new_job() for _ in range(9)]
    await driver.enqueue(jobs, now=NOW)
    gone = [jobs[0].id, jobs[4].id, jobs[5].id, jobs[8].id]

    await driver.cancel(gone, now=NOW)
    first = await driver.reserve(claim(2), now=NOW)
    rest = await driver.reserve(claim(9), now=NOW)

    assert [job.id for job in first + rest] == [job.id for job in jobs if job.id not in gone]
