"""What a worker writes to the logbook while it works, in virtual time."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest

from taskharbor.drivers.log_pages import each_entry
from taskharbor.drivers.log_recorder import LogRecorder
from taskharbor.drivers.messages import Claim
from taskharbor.errors import DriverUnavailable, Forbidden
from taskharbor.events import EventBus, JobsClaimed
from taskharbor.model.cause import cause_of_job
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.log_cells import CauseNumbers, Numbers, sum_of_causes, sum_of_numbers, unpacked
from taskharbor.model.log_series import MINUTE, floor
from taskharbor.model.logbook import CAUSES, NUMBERS
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.transitions import claimed, new_record
from taskharbor.testing.clock import SimulatedClock

HOUR = timedelta(hours=1)


async def entries(harness, book: str):
    now = harness.clock.now()
    return [entry async for entry in each_entry(harness.driver, book, now - HOUR, now + HOUR, now=now)]


async def numbers(harness) -> dict[tuple[str, str], Numbers]:
    rows = sum_of_numbers(unpacked(entry.data, Numbers) for entry in await entries(harness, NUMBERS))
    return {(row.queue, row.type): row for row in rows}


async def causes(harness) -> list[CauseNumbers]:
    return sum_of_causes(unpacked(entry.data, CauseNumbers) for entry in await entries(harness, CAUSES))


async def test_how_jobs_ended_waited_and_ran_is_in_its_cells(harness):
    async def work(ctx, job):
        await harness.clock.sleep(3.0)

    async def fail(ctx, job):
        raise ValueError("broken 17")

    await harness.put_many(3, "work")
    await harness.put("fail", max_attempts=2)
    await harness.pass_time(10)
    retry = RetryPolicy(base=timedelta(seconds=1), jitter=0)
    worker = harness.worker({"work": work, "fail": fail}, retry=retry)

    await harness.run_until_idle(worker)

    found = await numbers(harness)
    done = found["default", "work"]
    assert (done.completed, done.failed, done.retried) == (3, 0, 0)
    assert sum(done.wait) == 3
    assert done.wait_sum == pytest.approx(30, abs=1)
    assert sum(done.run) == 3
    assert done.run_sum == pytest.approx(9, abs=0.1)
    failed = found["default", "fail"]
    assert (failed.completed, failed.failed, failed.retried, sum(failed.run)) == (0, 1, 1, 2)


async def test_why_attempts_failed_is_in_its_cells(harness):
    async def fail(ctx, job):
        raise ValueError("no user 48213")

    ids = [await harness.put("fail", max_attempts=1), await harness.put("fail", max_attempts=1)]
    worker = harness.worker({"fail": fail}, labels={"release": "4f2a9c1"})

    await harness.run_until_idle(worker)

    [row] = await causes(harness)
    assert (row.type, row.queue, row.failure_kind, row.dead, row.retried) == (
        "fail",
        "default",
        "error",
        2,
        0,
    )
    assert row.title == "ValueError: no user …"
    assert row.frame is not None
    assert row.frame.endswith("in fail")
    for record in await harness.driver.get(ids, now=harness.clock.now()):
        found = cause_of_job(record)  # worked out from what the store kept
        assert found is not None
        assert found.id == row.cause
    assert (row.sample in ids, row.release, row.first_at <= row.last_at) == (True, "4f2a9c1", True)


async def test_the_release_may_come_from_the_environment(harness, monkeypatch):
    monkeypatch.setitem(os.environ, "TASKHARBOR_RELEASE", "r-7")

    async def fail(ctx, job):
        raise ValueError

    await harness.put("fail", max_attempts=1)
    await harness.run_until_idle(harness.worker({"fail": fail}))

    assert [(row.first_release, row.release) for row in await causes(harness)] == [("r-7", "r-7")]


async def test_a_cell_is_written_again_with_whole_numbers(harness):
    async def work(ctx, job):
        return None

    async with harness.at_work(harness.worker({"work": work})):
        counts = []
        for _ in range(4):
            await harness.put_many(2)
            await harness.pass_time(8)
            counts.append(sum(row.completed for row in (await numbers(harness)).values()))
        by_minute = {entry.at for entry in await entries(harness, NUMBERS)}

    assert counts[-1] == 8
    assert counts == sorted(counts)
    assert by_minute <= {floor(at, MINUTE) for at in by_minute}
    assert len(await entries(harness, NUMBERS)) == len(by_minute)


async def test_a_new_minute_is_a_new_cell(harness):
    async def work(ctx, job):
        return None

    async with harness.at_work(harness.worker({"work": work})):
        for _ in range(3):
            await harness.put()
            await harness.pass_time(60)

        found = await entries(harness, NUMBERS)
    assert len({entry.at for entry in found}) == 3
    assert sum(row.completed for row in (await numbers(harness)).values()) == 3


async def test_what_could_not_be_written_comes_with_the_next_write(harness):
    async def work(ctx, job):
        return None

    failures = [DriverUnavailable("gone"), DriverUnavailable("gone")]
    write = harness.driver.do_write_log

    async def flaky(*args):
        if failures:
            raise failures.pop()
        await write(*args)

    harness.driver.do_write_log = flaky
    async with harness.at_work(harness.worker({"work": work})):
        await harness.put_many(4)
        await harness.pass_time(20)

        assert failures == []
        assert sum(row.completed for row in (await numbers(harness)).values()) == 4


async def test_a_worker_that_may_not_write_goes_on_without(harness):
    async def work(ctx, job):
        return None

    asked = []

    async def refuse(*args):
        asked.append(args)
        raise Forbidden("this token is limited to some queues")

    harness.driver.do_write_log = refuse
    async with harness.at_work(harness.worker({"work": work})):
        job_id = await harness.put()
        await harness.pass_time(60)
        await harness.put()
        await harness.pass_time(60)
    assert len(asked) == 1
    assert (await harness.job(job_id)).state == "completed"


async def test_without_a_logbook_nothing_is_written(harness):
    async def work(ctx, job):
        return None

    await harness.put()
    await harness.run_until_idle(harness.worker({"work": work}, logbook=False))

    assert await entries(harness, NUMBERS) == []


async def test_an_idle_worker_writes_nothing(harness):
    async def work(ctx, job):
        return None

    async with harness.at_work(harness.worker({"work": work})):
        await harness.pass_time(120)

        assert await entries(harness, NUMBERS) == []


async def test_a_job_that_was_given_up_counts_as_failed_and_stalled(harness):
    async def work(ctx, job):
        return None

    await harness.put(max_stalls=1)
    claim = Claim(queues=("default",), worker_id="dead", lease_for=timedelta(seconds=1))
    await harness.driver.reserve(claim, now=harness.clock.now())
    await harness.pass_time(5)

    await harness.run_until_idle(harness.worker({"work": work}))

    row = (await numbers(harness))["default", "work"]
    assert (row.failed, row.stalled, row.completed) == (1, 1, 0)
    assert [(one.failure_kind, one.dead) for one in await causes(harness)] == [("stalled", 1)]


async def test_jobs_of_several_queues_and_types_are_counted_apart(harness):
    async def work(ctx, job):
        return None

    expected = {}
    for place, (queue, type_name) in enumerate([("q1", "a"), ("q1", "b"), ("q2", "a"), ("q2", "b")], 1):
        await harness.put_many(5 * place, type_name, queue=queue)
        expected[queue, type_name] = 5 * place
    worker = harness.worker({"a": work, "b": work}, queues=["q1", "q2"], concurrency=100)

    await harness.run_until_idle(worker)

    found = await numbers(harness)
    assert {pair: row.completed for pair, row in found.items()} == expected
    assert {pair: (sum(row.wait), sum(row.run)) for pair, row in found.items()} == {
        pair: (count, count) for pair, count in expected.items()
    }


async def test_one_retried_job_leaves_its_batch_together(harness, monkeypatch):
    notes = []

    def note(self, count):
        notes.append(count)
        count()

    monkeypatch.setattr(LogRecorder, "_note", note)

    async def fail_once(ctx, job):
        if job.payload == b"17" and ctx.attempt == 1:
            raise ValueError

    for number in range(100):
        await harness.put("work", payload=b"%d" % number)
    retry = RetryPolicy(base=timedelta(seconds=1), jitter=0)

    for _ in range(2):
        await harness.run_until_idle(harness.worker({"work": fail_once}, concurrency=100, retry=retry))
        await harness.pass_time(2)

    row = (await numbers(harness))["default", "work"]
    assert (row.completed, row.retried, sum(row.wait), sum(row.run)) == (100, 1, 101, 101)
    assert len(notes) < 20


async def test_many_retried_jobs_are_counted_together(harness, monkeypatch):
    notes = []

    def note(self, count):
        notes.append(count)
        count()

    monkeypatch.setattr(LogRecorder, "_note", note)

    async def fail_once(ctx, job):
        if ctx.attempt == 1:
            raise ValueError

    await harness.put_many(100, "work")
    retry = RetryPolicy(base=timedelta(seconds=1), jitter=0)

    for _ in range(2):
        await harness.run_until_idle(harness.worker({"work": fail_once}, concurrency=100, retry=retry))
        await harness.pass_time(2)

    row = (await numbers(harness))["default", "work"]
    assert (row.completed, row.retried, sum(row.wait), sum(row.run)) == (100, 100, 200, 200)
    assert len(notes) < 20


async def test_what_nobody_takes_is_counted_and_bounded():
    recorder, events, clock = LogRecorder("w", SimulatedClock()), EventBus(), SimulatedClock()
    recorder.listen(events)
    record = new_record(NewJob(id=Entropy(1).job_id(clock.now()), type="t"), 1, clock.now())
    job = claimed(record, "0" * 32, "w", clock.now() + HOUR, clock.now())

    for _ in range(5000):
        events.emit(JobsClaimed(worker_id="w", kind="any", jobs=[job]))
        events.emit(JobsClaimed(worker_id="another", kind="any", jobs=[job]))

    assert len(recorder._noted) < 5000
    [entry] = recorder.take()
    [row] = unpacked(entry.data, Numbers)
    assert sum(row.wait) == 5000
    assert recorder.take() == []
