"""A worker with `resolve` finds handlers by name, when their first job comes."""

from __future__ import annotations

import pytest

from taskharbor.client.why import look_into
from taskharbor.errors import ConfigurationError
from taskharbor.model.state import JobState
from taskharbor.tasks import job_handler


async def nothing(ctx, job):
    return None


class Names:
    """A `resolve` that knows some names and keeps what it was asked."""

    def __init__(self, **known):
        self.asked = []
        self._known = known

    def __call__(self, type_name):
        self.asked.append(type_name)
        found = self._known.get(type_name)
        if isinstance(found, Exception):
            raise found
        return None if found is None else job_handler(type_name, found)


async def test_a_type_is_looked_up_once_and_then_known(harness):
    names = Names(work=nothing)
    jobs = await harness.put_many(3)

    await harness.run_until_idle(harness.worker(resolve=names))

    assert names.asked == ["work"]
    assert [(await harness.job(job)).state for job in jobs] == [JobState.COMPLETED] * 3


async def test_a_registered_handler_is_not_looked_up(harness):
    names = Names()
    job = await harness.put("known")

    await harness.run_until_idle(harness.worker({"known": nothing}, resolve=names))

    assert (await harness.job(job)).state is JobState.COMPLETED
    assert names.asked == []


async def test_a_job_without_a_handler_is_released_for_a_while_and_nothing_is_counted(harness, caplog):
    names = Names()
    jobs = await harness.put_many(3, "gone", max_attempts=1, max_stalls=1)

    async with harness.at_work(harness.worker(resolve=names)):
        await harness.pass_time(100)
        records = [await harness.job(job) for job in jobs]

    assert names.asked == ["gone"]
    assert caplog.text.count("has no handler for 'gone'") == 1
    assert {(job.attempts, job.stalls, job.starts) for job in records} == {(0, 0, 4)}
    assert {job.state for job in records} == {JobState.SCHEDULED}


async def test_why_says_that_no_worker_has_a_handler(harness):
    job = await harness.put("gone")

    async with harness.at_work(harness.worker(resolve=Names())):
        await harness.pass_time(10)
        waits = await look_into(harness.driver, job, now=harness.clock.now())
        await harness.pass_time(19.9)
        new = await harness.put("gone", queue="default", delay=None)
        ready = await look_into(harness.driver, new, now=harness.clock.now())

    assert "it has no handler for gone" in waits.facts[0]
    assert "--include" in (waits.hint or "")
    assert "no live worker of queue default knows the task gone" in ready.text


@pytest.mark.parametrize("error", [ImportError("no module"), ConfigurationError("no")])
async def test_an_error_of_resolve_releases_the_job(harness, caplog, error):
    job = await harness.put("gone")

    await harness.run_until_idle(harness.worker(resolve=Names(gone=error)))

    assert (await harness.job(job)).state is JobState.SCHEDULED
    assert "looking for the handler of 'gone' failed" in caplog.text


async def test_a_handler_of_another_type_is_refused(harness, caplog):
    job = await harness.put("work")

    await harness.run_until_idle(harness.worker(resolve=lambda _: job_handler("other", nothing)))

    assert (await harness.job(job)).state is JobState.SCHEDULED
    assert "returned the handler of 'other'" in caplog.text


async def test_with_unknown_types_fail_an_unresolved_job_fails(harness):
    job = await harness.put("gone")

    await harness.run_until_idle(harness.worker(resolve=Names(), unknown_types="fail"))

    assert (await harness.job(job)).failure_kind == "no_handler"


async def test_a_cancelled_job_without_a_handler_is_cancelled(harness):
    async with harness.at_work(harness.worker(resolve=Names())):
        job = await harness.put("gone")
        await harness.pass_time(2)
        await harness.driver.cancel([job], now=harness.clock.now())
        await harness.pass_time(40)

    assert (await harness.job(job)).state is JobState.CANCELLED
