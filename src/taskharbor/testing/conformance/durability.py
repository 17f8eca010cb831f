"""Crash atomicity as far as the contract shows it: what was answered is there after a restart, whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Counts, EnqueueResult, Page, Query, Speculated
from taskharbor.errors import JobNotInflight
from taskharbor.model.job import JobRecord, NewJob, Progress
from taskharbor.model.limits import RateLimit
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Ack, Fail, Retry, Settlement
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    ENDS,
    HOUR,
    LEASE,
    MINUTE,
    OTHER_WORKER,
    QUEUE,
    START,
    TYPE,
    claim,
    enqueue_one,
    get_one,
    in_state,
    new_job,
    new_jobs,
    refused,
    requires,
    reserve,
    reserve_one,
    running,
    settle_one,
)


@asynccontextmanager
async def restarted(driver: Driver) -> AsyncIterator[Driver]:
    """A new handle on the same store after the old one is closed."""
    requires(driver, "durable")
    again = driver.another()
    await driver.close()
    async with again:
        yield again


async def everything(driver: Driver) -> list[object]:
    """All that can be looked at."""
    page: Page = await driver.find(Query(limit=1000), now=START)
    return [
        page.jobs,
        await driver.count(now=START),
        await driver.queues(now=START),
        await driver.schedules(now=START),
        await driver.workers(now=START),
        await driver.types(now=START),
    ]


async def test_all_that_can_be_seen_is_there_after_a_restart(driver: Driver) -> None:
    """U11: jobs in every state, settings, schedules, workers and averages, bit for bit."""
    for state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.BLOCKED):
        await in_state(driver, state, payload=bytes(range(256)), headers={"ü": "🐍"})
    await in_state(driver, JobState.RUNNING, queue="kit-running", max_stalls=3)
    await in_state(driver, JobState.SCHEDULED)
    await in_state(driver, JobState.READY, queue="kit-ready")
    rate = RateLimit(5, MINUTE)
    await driver.configure_queue(QueueSettings(queue=QUEUE, max_running=9, enqueue_rate=rate), now=START)
    await driver.configure_queue(QueueSettings(queue=EVERY_QUEUE, fail_queue="kit-dead"), now=START)
    template = NewJob(id="", type=TYPE, payload=b"\0")
    await driver.put_schedule(Schedule(name="nightly", template=template, cron="@daily"), now=START)
    await driver.report_worker(WorkerReport(worker_id="a"), [Sample(TYPE, MINUTE)], LEASE, now=START)
    before = await everything(driver)

    async with restarted(driver) as again:
        assert await everything(again) == before


async def test_a_lease_goes_on_after_a_restart(driver: Driver) -> None:
    """U03 N11: its owner can extend and settle, and no other worker gets the job."""
    job = await running(driver)
    await driver.extend_leases([job.lease], LEASE, progress={job.id: Progress(0.5, "half")}, now=START)

    async with restarted(driver) as again:
        assert await reserve(again, limit=10) == []
        assert (await get_one(again, job.id)).progress == Progress(0.5, "half")
        await settle_one(again, Ack(job.lease, b"done"))
        assert (await get_one(again, job.id)).settled_token == job.token


@pytest.mark.parametrize("end", ENDS)
async def test_an_answered_settlement_is_not_forgotten(driver: Driver, end: str) -> None:
    """U04 U05 U06: the record is the same, and a repeat is refused."""
    job = await running(driver)
    await settle_one(driver, ENDS[end](job.lease))
    before = await get_one(driver, job.id)

    async with restarted(driver) as again:
        assert await get_one(again, job.id) == before
        assert isinstance(await refused(again, ENDS[end](job.lease)), JobNotInflight)


async def test_order_and_fences_go_on_after_a_restart(driver: Driver) -> None:
    """U01 B24: places keep rising, and so does the fence of a job."""
    first = new_job()
    await driver.enqueue([first], now=START)
    job = await reserve_one(driver)
    await settle_one(driver, Retry(job.lease, reason="broken"))

    async with restarted(driver) as again:
        second = await enqueue_one(again)
        taken = await reserve(again, limit=2)
        assert [job.id for job in taken] == [first.id, second.id]
        assert taken[0].fence > job.fence
        assert taken[1].seq > taken[0].seq


async def test_keys_aliases_and_idempotency_are_kept(driver: Driver) -> None:
    """U02 M05: what is blocked stays blocked, what was merged stays merged."""
    holder = await running(driver, key=b"held", lease_for=HOUR)
    blocked = await enqueue_one(driver, key=b"held", idempotency_key=b"once")
    waiting = await enqueue_one(driver, key=b"waits", run_at=START + HOUR)
    alias = new_job(key=b"waits", run_at=START + HOUR)
    await driver.enqueue([alias], now=START)

    async with restarted(driver) as again:
        assert await reserve(again, limit=10) == []
        assert (await enqueue_one(again, key=b"held")).id == blocked.id
        assert (await enqueue_one(again, idempotency_key=b"once")).result is EnqueueResult.DUPLICATE
        assert (await get_one(again, alias.id)).id == waiting.id
        await settle_one(again, Ack(holder.lease))
        assert [job.id for job in await reserve(again, limit=10)] == [blocked.id]


async def test_a_copy_and_its_right_to_win_are_kept(driver: Driver) -> None:
    """U08: also that its original's worker may not have it."""
    original = await running(driver, lease_for=HOUR)
    made = await driver.speculate(original.id, now=START)
    assert isinstance(made, Speculated)

    async with restarted(driver) as again:
        assert await reserve(again, limit=10) == []
        copy = await reserve_one(again, worker_id=OTHER_WORKER)
        assert copy.id == made.copy_id
        await settle_one(again, Ack(copy.lease, b"by the copy"))
        assert (await get_one(again, original.id)).result == b"by the copy"


async def test_cancel_requeue_and_reclaim_are_kept(driver: Driver) -> None:
    """U07 U08 U09: a cancel request too."""
    cancelled = await running(driver, lease_for=HOUR)
    await driver.cancel([cancelled.id], now=START)
    requeued = await in_state(driver, JobState.FAILED, queue="kit-again")
    await driver.requeue([requeued.id], now=START)
    reclaimed = await running(driver, queue="kit-lost")
    await driver.reclaim(now=START + LEASE)

    async with restarted(driver) as again:
        assert [job.id for job in await reserve(again, queues=("kit-again",))] == [requeued.id]
        lost = await reserve_one(again, now=START + LEASE, queues=("kit-lost",))
        assert (lost.id, lost.stalls) == (reclaimed.id, 1)
        answer = await settle_one(again, Ack(cancelled.lease))
        assert answer.state is JobState.CANCELLED


async def test_closing_ends_no_lease_and_a_handle_can_be_opened_again(driver: Driver) -> None:
    """N11 U11: closed and opened by the same handle, where the store outlives it."""
    requires(driver, "durable")
    job = await running(driver)
    await driver.close()

    await driver.open()

    assert await reserve(driver, limit=10) == []
    await settle_one(driver, Ack(job.lease))


# ------------------------------------------------------------------ a caller that gives up

Steps = Callable[[Driver, JobRecord], Coroutine[Any, Any, object]]
SETTLEMENTS: dict[str, Callable[[JobRecord], Settlement]] = {
    "ack": lambda job: Ack(job.lease, b"done"),
    "fail": lambda job: Fail(job.lease, "broken"),
    "retry": lambda job: Retry(job.lease, delay=MINUTE, reason="broken"),
}
GIVEN_UP: dict[str, Steps] = {
    "enqueue": lambda driver, job: driver.enqueue(new_jobs(20), now=START),
    "reserve": lambda driver, job: driver.reserve(claim(limit=5), now=START),
    "cancel": lambda driver, job: driver.cancel([job.id], now=START),
    "extend": lambda driver, job: driver.extend_leases([job.lease], HOUR, now=START),
    **{
        name: lambda driver, job, make=make: driver.settle([make(job)], now=START)  # type: ignore[misc]
        for name, make in SETTLEMENTS.items()
    },
}


async def give_up_after(steps: int, call: Awaitable[object]) -> None:
    """Let a call run for so many turns of the loop, then cancel it."""
    task = asyncio.ensure_future(call)
    for _ in range(steps):
        await asyncio.wait([task], timeout=0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("verb", GIVEN_UP)
async def test_a_caller_that_gives_up_leaves_all_or_nothing(driver: Driver, verb: str, steps: int) -> None:
    """N12 V02 V07: the call happened as a whole or not at all, and the handle works on."""
    job = await running(driver, lease_for=HOUR)
    await driver.enqueue(new_jobs(5, queue="kit-after"), now=START)

    await give_up_after(steps, GIVEN_UP[verb](driver, job))

    # Whatever was given up is over once a later call of the same handle is answered.
    assert len(await reserve(driver, queues=("kit-after",), limit=5)) == 5
    counts = (await driver.count(now=START))[QUEUE]
    record = await get_one(driver, job.id)
    if verb == "enqueue":
        assert counts in (Counts(running=1), Counts(running=1, ready=20))
    elif verb in SETTLEMENTS:
        expected = {"ack": JobState.COMPLETED, "fail": JobState.FAILED, "retry": JobState.SCHEDULED}[verb]
        assert (record.state, record.version) in (
            (JobState.RUNNING, job.version),
            (expected, job.version + 1),
        )
        assert counts.total == 1
    else:
        assert (record.state, counts.total) == (JobState.RUNNING, 1)
        assert record.version - job.version in (0, 1)
    async with driver.another() as second:
        assert (await enqueue_one(second)).result is EnqueueResult.CREATED
