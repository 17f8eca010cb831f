"""A: jobs on their way in, and the moment they may run."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone, tzinfo
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
    LEASE,
    MICROSECOND,
    MINUTE,
    OTHER_QUEUE,
    QUEUE,
    SECOND,
    START,
    TYPE,
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
    state_of,
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


@pytest.mark.parametrize("offset", [None, -HOUR, -MICROSECOND, timedelta(0)], ids=str)
async def test_a_job_without_a_later_run_at_is_ready(driver: Driver, offset: timedelta | None) -> None:
    """A02 A03 A04: no run_at, one in the past, and exactly now."""
    run_at = None if offset is None else START + offset
    answer = await enqueue_one(driver, run_at=run_at)

    record = await get_one(driver, answer.id)
    [job] = await reserve(driver)

    assert (record.state, record.run_at) == (JobState.READY, run_at)
    assert job.id == answer.id


async def test_a_job_due_in_a_microsecond_waits(driver: Driver) -> None:
    """A05: run_at = now + 1 µs reads scheduled and is not handed out."""
    answer = await enqueue_one(driver, run_at=START + MICROSECOND)

    taken = await reserve(driver)

    assert taken == []
    assert await state_of(driver, answer.id) is JobState.SCHEDULED


@pytest.mark.parametrize("due", [START + MINUTE, START + timedelta(days=30, microseconds=7)], ids=str)
async def test_a_scheduled_job_runs_from_exactly_its_run_at_on(driver: Driver, due: datetime) -> None:
    """A06 R001-13: one microsecond before nothing, at run_at the job, without any promotion in between."""
    answer = await enqueue_one(driver, run_at=due)

    before = await reserve(driver, now=due - MICROSECOND)
    read_before = await state_of(driver, answer.id, now=due - MICROSECOND)
    read_at = await state_of(driver, answer.id, now=due)
    [job] = await reserve(driver, now=due)

    assert (before, read_before) == ([], JobState.SCHEDULED)
    assert (job.id, read_at) == (answer.id, JobState.READY)


async def test_ten_years_ahead_is_a_plan_and_more_is_a_mistake(driver: Driver) -> None:
    """A07: run_at may lie ten years ahead, not eleven."""
    answer = await enqueue_one(driver, run_at=START + timedelta(days=3650))

    async with unchanged(driver, answer.id):
        with pytest.raises(InvalidArgument):
            await enqueue_one(driver, run_at=START + timedelta(days=4015))
        with pytest.raises(InvalidArgument):
            await enqueue_one(driver, delay=timedelta(days=4015))

    assert await state_of(driver, answer.id) is JobState.SCHEDULED


async def test_an_instant_without_a_time_zone_is_refused(driver: Driver) -> None:
    """A08: neither run_at nor now may be naive."""
    naive = START.replace(tzinfo=None)

    async with unchanged(driver):
        with pytest.raises(InvalidArgument):
            await enqueue_one(driver, run_at=naive)
        with pytest.raises(InvalidArgument):
            await driver.enqueue([new_job()], now=naive)


async def test_another_time_zone_means_the_same_instant(driver: Driver) -> None:
    """A09: 15:00 in Kolkata is 09:30 in UTC, for run_at and for now."""
    kolkata = timezone(timedelta(hours=5, minutes=30))
    due = START + MINUTE
    answer = await enqueue_one(driver, run_at=due.astimezone(kolkata), now=START.astimezone(kolkata))

    early = await reserve(driver, now=(due - MICROSECOND).astimezone(kolkata))
    record = await get_one(driver, answer.id, now=due)
    [job] = await reserve(driver, now=due.astimezone(kolkata))

    assert early == []
    assert (record.run_at, record.created_at, answer.at) == (due, START, START)
    assert job.lease_expires_at == due + LEASE


class _ClockChange(tzinfo):
    """A zone whose clocks change on the day after START, between 02:00 and 03:00 by the wall."""

    def __init__(self, before: int, after: int) -> None:
        self.before, self.after = timedelta(hours=before), timedelta(hours=after)

    def utcoffset(self, at: datetime | None) -> timedelta:
        assert at is not None
        wall = at.replace(tzinfo=None)
        two = datetime(START.year, START.month, START.day + 1, 2)  # noqa: DTZ001  (by the wall)
        if two <= wall < two + HOUR:
            return self.after if at.fold else self.before
        return self.before if wall < two else self.after

    def dst(self, at: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, at: datetime | None) -> str:
        return "clock-change"


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)], ids=["fold", "gap"])
@pytest.mark.parametrize("fold", [0, 1])
async def test_instants_around_a_clock_change_are_kept(
    driver: Driver, before: int, after: int, fold: int
) -> None:
    """A10: 02:30 on the night of the change, read by its fold."""
    zone = _ClockChange(before, after)
    wall = datetime(START.year, START.month, START.day + 1, 2, 30, tzinfo=zone, fold=fold)
    meant = datetime(START.year, START.month, START.day + 1, 2, 30, tzinfo=START.tzinfo) - timedelta(
        hours=after if fold else before
    )
    answer = await enqueue_one(driver, run_at=wall)

    record = await get_one(driver, answer.id)
    early = await reserve(driver, now=meant - MICROSECOND)
    [job] = await reserve(driver, now=meant)

    assert record.run_at is not None
    assert record.run_at.astimezone(START.tzinfo) == meant
    assert (early, job.id) == ([], answer.id)


async def test_the_answer_names_the_job_its_version_and_the_deciding_clock(driver: Driver) -> None:
    """A11: (id, created, at, version) as stored."""
    job = new_job()

    [answer] = await driver.enqueue([job], now=START)
    record = await get_one(driver, job.id)

    assert answer == Enqueued(job.id, EnqueueResult.CREATED, START, record.version)
    assert (record.created_at, record.updated_at) == (START, START)


async def test_a_job_scheduled_far_beyond_a_lease_runs_once(driver: Driver) -> None:
    """A12: waiting is not leasing: two hours ahead with a lease of thirty seconds."""
    due = START + 2 * HOUR
    answer = await enqueue_one(driver, run_at=due)

    early = [await reserve(driver, now=START + minutes * MINUTE) for minutes in range(0, 120, 7)]
    await driver.reclaim(now=due - MICROSECOND)
    taken = await reserve_one(driver, now=due)
    again = await reserve(driver, now=due + LEASE - MICROSECOND)

    assert not any(early)
    assert (taken.id, taken.starts, taken.stalls, again) == (answer.id, 1, 0, [])


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


async def test_jobs_of_one_call_wait_each_for_its_own_delay(driver: Driver) -> None:
    """A05: also beside others that differ in nothing else, or do not wait at all."""
    delays = [None, 5 * SECOND, 7 * SECOND, None, 7 * SECOND]

    ids = await enqueue(driver, *(new_job(delay=delay) for delay in delays))

    assert [(await get_one(driver, job_id)).run_at for job_id in ids] == [
        None if delay is None else START + delay for delay in delays
    ]


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


# ------------------------------------------------------------------ delay


@pytest.mark.parametrize("delay", [MICROSECOND, SECOND, timedelta(days=3650)], ids=str)
async def test_a_delay_counts_from_the_deciding_clock(driver: Driver, delay: timedelta) -> None:
    """N14: (delay) run_at = now + delay, to the microsecond."""
    answer = await enqueue_one(driver, delay=delay)

    record = await get_one(driver, answer.id)
    early = await reserve(driver, now=START + delay - MICROSECOND)
    [job] = await reserve(driver, now=START + delay)

    assert (record.state, record.run_at) == (JobState.SCHEDULED, START + delay)
    assert (early, job.id) == ([], answer.id)


async def test_no_delay_is_now(driver: Driver) -> None:
    """N14: (delay) a delay of zero leaves run_at empty."""
    answer = await enqueue_one(driver, delay=timedelta(0))

    record = await get_one(driver, answer.id)

    assert (record.state, record.run_at) == (JobState.READY, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"delay": -MICROSECOND},
        {"delay": 5},
        {"delay": SECOND, "run_at": START + SECOND},
    ],
    ids=["negative", "a bare number", "beside run_at"],
)
async def test_a_senseless_delay_is_refused(driver: Driver, fields: dict[str, Any]) -> None:
    """N14: (delay) below zero, not a timedelta, or beside run_at."""
    async with unchanged(driver):
        with pytest.raises(InvalidArgument):
            await enqueue_one(driver, **fields)


async def test_promotion_cannot_be_seen(driver: Driver) -> None:
    """A06: records, counts and order are the same with and without `promote`; never more than its limit."""
    ids = [
        (await enqueue_one(driver, run_at=START + timedelta(seconds=seconds), type=TYPE)).id
        for seconds in (3, 1, 2)
    ]
    due = START + MINUTE

    async with unchanged(driver, *ids, now=due):
        moved = [
            await driver.promote(2, now=due),
            await driver.promote(2, now=due),
            await driver.promote(now=due),
        ]
    taken = await reserve(driver, limit=5, now=due)

    assert moved[0] <= 2
    assert sum(moved) <= 3
    assert [job.id for job in taken] == [ids[1], ids[2], ids[0]]


async def test_promotion_touches_nothing_that_is_not_due(driver: Driver) -> None:
    """A06 R003-18: a job a microsecond ahead stays scheduled, however often two sweepers promote."""
    due = START + MINUTE
    answer = await enqueue_one(driver, run_at=due, priority=7, requires="gpu")
    other = await driver.another().open()

    async with unchanged(driver, answer.id, now=due - MICROSECOND):
        moved = [await each.promote(now=due - MICROSECOND) for each in (driver, other)]
    await asyncio.gather(driver.promote(now=due), other.promote(now=due))
    taken = await reserve(driver, limit=5, now=due, lanes=("gpu",))
    await other.close()

    assert moved == [0, 0]
    assert [(job.id, job.priority, job.requires) for job in taken] == [(answer.id, 7, "gpu")]
