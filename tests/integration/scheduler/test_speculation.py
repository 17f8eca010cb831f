"""Second runs for stragglers, from end to end, on every store."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from taskharbor.drivers.messages import Speculated
from taskharbor.errors import ConflictError
from taskharbor.events import EventBus, LeaseWasLost
from taskharbor.model.clock import SystemClock
from taskharbor.model.speculation import SPECULATE_HEADER, HeadStart, Speculate, header_of
from taskharbor.model.state import JobState
from taskharbor.scheduler import Scheduler
from taskharbor.scheduler.duty import Now
from taskharbor.scheduler.speculate import SpeculateOnStragglers
from tests.integration.worker.processes import SLOW

AFTER = timedelta(seconds=0.1)
HEADERS = {SPECULATE_HEADER: header_of(Speculate(after=AFTER, factor=1.0))}


@asynccontextmanager
async def scheduling(harness):
    """A scheduler in this loop, with a handle of its own, that looks out for stragglers all the time."""
    async with harness.driver.another() as driver:
        duty = SpeculateOnStragglers(driver, Now(driver, SystemClock()), every_seconds=0.05)
        scheduler = Scheduler(driver, duties=[duty])
        task = asyncio.create_task(scheduler.arun())
        try:
            yield
        finally:
            scheduler.stop()
            await asyncio.wait_for(task, SLOW)


class Straggler:
    """A handler that starts and takes its time, until it is let go or asked to stop."""

    def __init__(self, *, ignores_the_end: bool = False) -> None:
        self.has_begun, self.may_end, self.stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.reason: str | None = None
        self._ignores_the_end = ignores_the_end

    async def __call__(self, ctx, job):
        self.has_begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.reason = ctx.cancelled.reason
            self.stopped.set()
            if not self._ignores_the_end:
                raise
        return "by the straggler"

    async def begins(self) -> None:
        await asyncio.wait_for(self.has_begun.wait(), SLOW)


async def quick(ctx, job):
    return "by the copy"


@pytest.mark.parametrize("ignores_the_end", [False, True], ids=["stops", "runs on"])
async def test_a_straggler_is_finished_by_its_copy_and_refused_itself(harness, ignores_the_end):
    straggler, bus = Straggler(ignores_the_end=ignores_the_end), EventBus()
    lost: list[LeaseWasLost] = []
    bus.listen(lost.append, LeaseWasLost)
    async with harness.working(straggler, events=bus, name="slow") as slow:
        job_id = await harness.add(headers=HEADERS)
        await straggler.begins()
        async with harness.working(quick, name="fast"), scheduling(harness):
            record = await harness.ended(job_id)
            await asyncio.wait_for(straggler.stopped.wait(), SLOW)
            await harness.until(lambda: lost != [], "the loss to be reported")

    assert (record.state, record.result, record.starts) == (JobState.COMPLETED, b'"by the copy"', 1)
    assert (record.attempts, record.stalls) == (0, 0)
    assert [attempt.outcome for attempt in record.history] == ["superseded"]
    assert record.history[0].worker_id == slow.id
    assert straggler.reason == "lease_lost"
    assert await harness.job(job_id) == record, "the loser changed nothing"


async def test_a_copy_that_fails_does_the_original_no_harm(harness):
    straggler = Straggler()
    copies = []

    async def copy(ctx, job):
        copies.append(job.id)
        raise ValueError("the copy has no luck")

    async with harness.working(straggler):
        job_id = await harness.add(headers=HEADERS, max_attempts=1)
        await straggler.begins()
        async with harness.working(copy), scheduling(harness):
            await harness.until(lambda: copies != [], "the copy")
            await harness.ended(copies[0])
            assert (await harness.job(job_id)).state is JobState.RUNNING
            straggler.may_end.set()
            record = await harness.ended(job_id)

    assert (record.state, record.result, record.attempts) == (JobState.COMPLETED, b'"by the straggler"', 0)
    assert (await harness.driver.count())["default"].failed == 0


async def test_the_original_that_ends_first_ends_its_copy(harness):
    original, copy = Straggler(), Straggler()
    async with harness.working(original):
        job_id = await harness.add(headers=HEADERS)
        await original.begins()
        async with harness.working(copy), scheduling(harness):
            await copy.begins()
            original.may_end.set()
            record = await harness.ended(job_id)
            await asyncio.wait_for(copy.stopped.wait(), SLOW)

    assert (record.state, record.result) == (JobState.COMPLETED, b'"by the straggler"')


async def test_a_cancel_ends_both_runs(harness):
    original, copy = Straggler(), Straggler()
    async with harness.working(original):
        job_id = await harness.add(headers=HEADERS)
        await original.begins()
        async with harness.working(copy), scheduling(harness):
            await copy.begins()
            await harness.driver.cancel([job_id])
            record = await harness.ended(job_id)
            for run in (original, copy):
                await asyncio.wait_for(run.stopped.wait(), SLOW)

    assert record.state is JobState.CANCELLED
    assert original.reason == "cancel"


async def test_a_keyed_job_never_has_a_second_run(harness):
    """Not by the scheduler, and not by hand; a job without a key beside it does have one."""
    runs: dict[str, int] = {"keyed": 0, "free": 0}
    may_end = asyncio.Event()

    async def handler(ctx, job):
        runs["free" if job.key is None else "keyed"] += 1
        await may_end.wait()

    async with harness.working(handler):
        keyed = await harness.add(headers=HEADERS, key=b"once")
        await harness.until(lambda: runs["keyed"] == 1, "the keyed job")
        await harness.add(headers=HEADERS)
        await harness.until(lambda: runs["free"] == 1, "the other job")
        async with harness.working(handler), scheduling(harness):
            await harness.until(lambda: runs["free"] == 2, "the copy of the other job")
            assert isinstance(await harness.driver.speculate(keyed), ConflictError)
            assert runs["keyed"] == 1
            may_end.set()
            await harness.ended(keyed)


async def test_a_slower_worker_leaves_the_copy_to_a_faster_one_although_it_is_idle(harness):
    """It passes the copy over, for the job behind it, and the next claim takes the copy."""
    straggler = Straggler()

    async def slow(ctx, job):
        return "by the slower one"

    async with harness.working(straggler, concurrency=1):
        job_id = await harness.add()
        await straggler.begins()
        async with harness.working(slow, concurrency=1) as slower:
            await harness.ended(await harness.add())  # it is there, and has its name
            start = HeadStart(slower=(slower.id,), span=timedelta(hours=1))
            assert isinstance(await harness.driver.speculate(job_id, head_start=start), Speculated)
            behind = await harness.ended(await harness.add())
            assert (await harness.job(job_id)).state is JobState.RUNNING
            async with harness.working(quick):
                record = await harness.ended(job_id)

    assert (behind.result, record.result) == (b'"by the slower one"', b'"by the copy"')


@pytest.mark.more("waits in real time for leases, limits or grace times to pass")
async def test_a_frozen_process_is_overtaken_long_before_its_lease_is_over(shared_harness):
    """SIGSTOP: it says nothing, its lease is good for minutes, and the copy does the work."""
    harness = shared_harness
    frozen = harness.start_worker(name="frozen", lease=300)
    job_id = await harness.add("hold", payload=b"1", headers=HEADERS)
    await harness.note("started", job_id)
    frozen.send_signal(signal.SIGSTOP)
    helper = harness.start_worker(name="helper", lease=300)
    harness.start_scheduler()

    record = await harness.ended(job_id)
    frozen.send_signal(signal.SIGCONT)
    await harness.until(
        lambda: f"lost the lease of job {job_id}" in harness.log(frozen), "the loser to learn of it"
    )

    assert (record.state, record.result) == (JobState.COMPLETED, str(helper.pid).encode())
    assert await harness.job(job_id) == record


@pytest.mark.parametrize("first", ["original", "copy"])
async def test_two_runs_that_end_together_have_one_outcome(harness, first):
    """Both are done; one settlement is stored, the other refused, whichever comes first."""
    original, copy = Straggler(), Straggler()
    async with harness.working(original) as one:
        job_id = await harness.add(headers=HEADERS)
        await original.begins()
        async with harness.working(copy) as other, scheduling(harness):
            await copy.begins()
            runs = [original, copy] if first == "original" else [copy, original]
            for run in runs:
                run.may_end.set()
            record = await harness.ended(job_id)
            await harness.until(lambda: ends_of(one) == 1, "the original")
            await harness.until(lambda: ends_of(other) == 1, "the copy")

    assert record.state is JobState.COMPLETED
    assert await harness.job(job_id) == record
    assert (await harness.driver.count())["default"].completed == 1


def ends_of(worker):
    return worker.counts.get("finished", 0) + worker.counts.get("leases_lost", 0)
