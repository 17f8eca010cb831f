"""A: jobs on their way in, and the moment they may run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Enqueued, EnqueueResult, Wakeup, WakeupKind
from taskharbor.errors import InvalidArgument, RateLimited
from taskharbor.model.checks import MAX_BATCH
from taskharbor.model.job import JobRecord, NewJob, Update
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    MINUTE,
    OTHER_QUEUE,
    QUEUE,
    SECOND,
    START,
    WORKER,
    enqueue,
    enqueue_one,
    get_one,
    new_id,
    new_job,
    new_jobs,
    requires,
    reserve,
    reserve_one,
    unchanged,
)

EVERYTHING: dict[str, Any] = {
    "type": "mail.send-v2",
    "payload": b"\x00\xff not json",
    "headers": {"codec": "raw", "trace": "é 🚢"},
    "key": b"user:7\x00{}",
    "idempotency_key": b" order/7 ",
    "priority": -7,
    "requires": "gpu",
    "run_at": START + timedelta(days=1, microseconds=1),
    "timeout": timedelta(milliseconds=1500),
    "max_attempts": 5,
    "max_stalls": 2,
    "min_backoff": timedelta(seconds=2),
    "max_backoff": timedelta(minutes=5, microseconds=3),
}


async def test_an_enqueued_job_can_be_reserved_at_once(driver: Driver) -> None:
    """A01: enqueue, then reserve at the same instant."""
    answer = await enqueue_one(driver)

    job = await reserve_one(driver)

    assert job.id == answer.id


async def test_the_answer_names_the_job_its_version_and_the_deciding_clock(driver: Driver) -> None:
    """A11: (id, created, at, version) as stored."""
    job = new_job()

    [answer] = await driver.enqueue([job], now=START)
    record = await get_one(driver, job.id)

    assert answer == Enqueued(job.id, EnqueueResult.CREATED, START, record.version)
    assert (record.created_at, record.updated_at) == (START, START)


async def test_one_malformed_job_refuses_the_whole_call(driver: Driver) -> None:
    """A13: nothing of the call is stored, at whatever position the bad one is."""
    for place in range(3):
        jobs = new_jobs(3)
        jobs[place] = new_job(priority=101)
        async with unchanged(driver, *(job.id for job in jobs)):
            with pytest.raises(InvalidArgument):
                await driver.enqueue(jobs, now=START)


async def test_a_call_over_its_budget_stores_nothing_at_all(driver: Driver) -> None:
    """A13: the store's own no comes after the checks, and is all or nothing as well."""
    requires(driver, "atomic_across_queues")
    await driver.configure_queue(
        QueueSettings(queue=OTHER_QUEUE, enqueue_rate=RateLimit(2, MINUTE)), now=START
    )
    await enqueue(driver, new_job(queue=OTHER_QUEUE))
    jobs = [new_job(), new_job(queue=OTHER_QUEUE), new_job(), new_job(queue=OTHER_QUEUE)]

    async with unchanged(driver, *(job.id for job in jobs)):
        with pytest.raises(RateLimited):
            await driver.enqueue(jobs, now=START)

    assert len(await driver.enqueue(jobs, now=START + MINUTE)) == len(jobs)


async def test_jobs_of_one_call_keep_their_order(driver: Driver) -> None:
    """A14: list order is enqueue order, whatever the ids look like."""
    jobs = [new_job(id=job_id) for job_id in sorted((new_id() for _ in range(50)), reverse=True)]

    answers = await driver.enqueue(jobs, now=START)
    taken = await reserve(driver, limit=50)

    assert [answer.id for answer in answers] == [job.id for job in jobs]
    assert [job.id for job in taken] == [job.id for job in jobs]
    assert [job.seq for job in taken] == sorted(job.seq for job in taken)


async def test_no_jobs_are_no_work(driver: Driver) -> None:
    """A15: an empty call answers an empty list."""
    async with unchanged(driver):
        assert await driver.enqueue([], now=START) == []


async def test_jobs_of_one_call_that_differ_in_one_field_keep_it(driver: Driver) -> None:
    """A01: the value of one job never becomes that of its neighbours, before or after it."""
    shared: dict[str, Any] = {"timeout": 9 * SECOND, "min_backoff": SECOND, "max_backoff": 5 * SECOND}
    differing: list[dict[str, Any]] = [
        {"type": "kit.other"},
        {"requires": "gpu"},
        {"timeout": 8 * SECOND},
        {"min_backoff": 2 * SECOND},
        {"max_backoff": 6 * SECOND},
        {"priority": 3},
        {"max_attempts": 4},
        {"max_stalls": 5},
        {"headers": {"a": "b"}},
        {"run_at": START + HOUR},
        {"run_at": START + MINUTE},
    ]
    fields = [shared | extra for one in differing for extra in ({}, one, {})]

    ids = await enqueue(driver, *(new_job(**one) for one in fields))

    for job_id, given in zip(ids, fields, strict=True):
        record = await get_one(driver, job_id)
        for name in {name for one in (shared, *differing) for name in one}:
            assert getattr(record, name) == given.get(name, getattr(new_job(), name)), (name, given)


async def test_a_call_beyond_the_batch_limit_is_refused(driver: Driver) -> None:
    """A16: ten thousand and one jobs are an invalid argument."""
    async with unchanged(driver):
        with pytest.raises(InvalidArgument):
            await driver.enqueue([new_job()] * (MAX_BATCH + 1), now=START)


async def test_an_empty_payload_stays_empty(driver: Driver) -> None:
    """A17: zero bytes come back as zero bytes."""
    await enqueue_one(driver, payload=b"")

    assert (await reserve_one(driver)).payload == b""


async def test_a_payload_may_be_as_large_as_the_limit_and_no_larger(driver: Driver) -> None:
    """A18: the limit itself is fine, one byte more is refused and not stored."""
    largest = b"x" * driver.max_payload
    await enqueue_one(driver, payload=largest)

    async with unchanged(driver):
        with pytest.raises(InvalidArgument):
            await enqueue_one(driver, payload=largest + b"x")

    assert (await reserve_one(driver)).payload == largest


@pytest.mark.parametrize("fields", [{}, EVERYTHING], ids=["bare", "everything"])
async def test_a_record_holds_what_was_given_and_nothing_else(driver: Driver, fields: dict[str, Any]) -> None:
    """A19 R000-9: every field survives, and a driver fills in no default of its own."""
    job = new_job(**fields)

    await driver.enqueue([job], now=START)
    record = await get_one(driver, job.id)

    assert record == as_stored(job, seq=record.seq)


def as_stored(job: NewJob, seq: int) -> JobRecord:
    """The whole record of a job that was just created at START."""
    is_later = job.run_at is not None and job.run_at > START
    return JobRecord(
        seq=seq,
        state=JobState.SCHEDULED if is_later else JobState.READY,
        created_at=START,
        updated_at=START,
        version=1,
        **{name: getattr(job, name) for name in NewJob.__struct_fields__ if name not in ("update", "delay")},
    )


async def test_the_flags_of_an_update_do_not_stay_with_a_waiting_job(driver: Driver) -> None:
    """A19: flags are kept by blocked jobs only."""
    answer = await enqueue_one(driver, key=b"k", update=Update(data=False, run_at="if_later"))

    assert (await get_one(driver, answer.id)).update is None


async def test_an_id_is_stored_once_also_within_one_call(driver: Driver) -> None:
    """A11: the first is created, its repeats are duplicates: beside it, after it, and with other content."""
    first, other = new_job(payload=b"first"), new_job()
    again = new_job(id=first.id, payload=b"again", queue=OTHER_QUEUE, type="kit.other")

    answers = await driver.enqueue([first, again, other], now=START)
    async with unchanged(driver, first.id, now=START + SECOND):
        [later] = await driver.enqueue([again], now=START + SECOND)

    assert [answer.result for answer in answers] == ["created", "duplicate", "created"]
    assert (later.id, later.result) == (first.id, EnqueueResult.DUPLICATE)
    assert (await get_one(driver, first.id)).payload == b"first"


# ------------------------------------------------------------------ blocking callers and transactions


async def test_a_blocking_caller_stores_the_same_job(driver: Driver) -> None:
    """A01: enqueue_blocking from a thread without a loop, and what it says where there is none."""
    job = new_job(payload=b"from a thread")
    if not driver.capabilities.blocking_enqueue:
        with pytest.raises(InvalidArgument):
            driver.enqueue_blocking([job], now=START)
        return

    [answer] = await asyncio.to_thread(driver.enqueue_blocking, [job], now=START)
    record = await get_one(driver, job.id)

    assert answer == Enqueued(job.id, EnqueueResult.CREATED, START, 1)
    assert record == as_stored(job, seq=record.seq)


async def test_what_is_no_transaction_of_the_store_is_refused(driver: Driver) -> None:
    """A20 A21: with the ability `tx` as without it; what commit and rollback do needs a real connection."""
    async with unchanged(driver):
        with pytest.raises(InvalidArgument):
            driver.enqueue_blocking([new_job()], now=START, tx=object())
        with pytest.raises(InvalidArgument):
            await driver.enqueue_in([new_job()], tx=object(), now=START)


async def test_an_enqueue_wakes_a_waiting_worker(driver: Driver) -> None:
    """A22: a listener of the queue gets a wake-up."""
    requires(driver, "wakeups")
    hints = driver.wakeups((QUEUE,), WORKER)
    waiting = asyncio.ensure_future(anext(hints))

    # A wake-up may be lost before the listener is ready; a worker that polls would not notice.
    async with asyncio.timeout(20):
        while not waiting.done():
            await enqueue_one(driver)
            await asyncio.wait({waiting}, timeout=0.05)

    assert waiting.result() == Wakeup(WakeupKind.WORK, QUEUE)
    await hints.aclose()
