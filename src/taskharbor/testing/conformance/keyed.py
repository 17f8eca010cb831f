"""Keyed jobs: at most one waiting and one running job per (queue, key), whatever happens."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import EnqueueResult, ReclaimResult, Requeued
from taskharbor.errors import DuplicateJob, InvalidArgument
from taskharbor.model.job import Update
from taskharbor.model.settlement import Ack, Release, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.keyed_table import ALL_FLAGS
from taskharbor.testing.conformance.kit import (
    ENDS,
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    OTHER_QUEUE,
    QUEUE,
    SECOND,
    START,
    WORKER,
    claim,
    enqueue,
    enqueue_one,
    found_ids,
    get_one,
    in_state,
    new_job,
    new_jobs,
    reserve,
    reserve_one,
    running,
    settle_one,
    state_of,
    unchanged,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def test_a_second_job_of_a_running_key_is_blocked(driver: Driver) -> None:
    """K01: it is stored, and not handed out."""
    await running(driver, key=b"key")

    answer = await enqueue_one(driver, key=b"key")

    assert (answer.result, await state_of(driver, answer.id)) == (EnqueueResult.BLOCKED, JobState.BLOCKED)
    assert await reserve(driver, limit=10) == []


async def test_a_blocked_job_stays_behind_whatever_its_priority(driver: Driver) -> None:
    """K02: a plain job of a lower priority goes first."""
    await running(driver, key=b"key")
    await enqueue_one(driver, key=b"key", priority=100)
    plain = await enqueue_one(driver, priority=-100)

    assert [job.id for job in await reserve(driver, limit=10)] == [plain.id]


@pytest.mark.parametrize("run_at", [None, EPOCH, EPOCH + MICROSECOND, START - HOUR], ids=str)
async def test_a_blocked_job_with_an_empty_or_ancient_run_at_stays_blocked(
    driver: Driver, run_at: datetime | None
) -> None:
    """K09 R004-5: zero is the time at which stores that hide blocked jobs by their sign let them out."""
    await running(driver, key=b"key")
    await enqueue_one(driver, key=b"key", run_at=run_at)
    await enqueue_one(driver, key=b"key", run_at=run_at)

    assert await reserve(driver, limit=10) == []
    assert (await driver.promote(now=START)).count == 0
    assert await reserve(driver, limit=10) == []


async def test_a_blocked_job_of_the_future_waits_for_both(driver: Driver) -> None:
    """K10: for its key and for its time."""
    job = await running(driver, key=b"key", lease_for=HOUR)
    blocked = await enqueue_one(driver, key=b"key", run_at=START + MINUTE)

    assert await reserve(driver, now=START + MINUTE, limit=10) == [], "due, but its key runs"
    await settle_one(driver, Ack(job.lease), now=START + SECOND)
    assert await state_of(driver, blocked.id, now=START + SECOND) is JobState.SCHEDULED
    assert await reserve(driver, now=START + MINUTE - MICROSECOND, limit=10) == []
    assert [again.id for again in await reserve(driver, now=START + MINUTE)] == [blocked.id]


# ------------------------------------------------------------------ unblocking


# Retry, Release and Stalled end a job for good only when a cancel was requested: else see the merges.
ENDS_FOR_GOOD = [(end, False) for end in ("Ack", "Fail", "Cancelled")] + [(end, True) for end in ENDS]


@pytest.mark.parametrize(("end", "requested"), ENDS_FOR_GOOD)
async def test_every_end_for_good_unblocks_whatever_the_flags(
    driver: Driver, end: str, requested: bool
) -> None:
    """K03 K04 K05 R004-19: all 32 combinations keep their own run_at and counts, and can be had when due."""
    keys = [str(number).encode() for number in range(len(ALL_FLAGS))]
    await driver.enqueue([new_job(key=key, priority=3) for key in keys], now=START)
    jobs = await reserve(driver, limit=len(keys))
    waiting = [
        new_job(key=key, update=flags, run_at=START + MINUTE)
        for key, flags in zip(keys, ALL_FLAGS, strict=True)
    ]
    await driver.enqueue(waiting, now=START)
    if requested:
        await driver.cancel([job.id for job in jobs], now=START)

    await driver.settle([ENDS[end](job.lease) for job in jobs], now=START)

    for blocked in waiting:
        job = await get_one(driver, blocked.id)
        assert (job.state, job.run_at) == (JobState.SCHEDULED, START + MINUTE)
        assert (job.attempts, job.stalls, job.starts, job.update) == (0, 0, 0, None)
    assert await reserve(driver, now=START + MINUTE - MICROSECOND, limit=100) == []
    taken = await reserve(driver, now=START + MINUTE, limit=100)
    assert [job.id for job in taken] == [job.id for job in waiting]


async def test_a_reclaim_that_fails_the_job_unblocks(driver: Driver) -> None:
    """K06 R004-33: its last stall is an end for good."""
    job = await running(driver, key=b"key", max_stalls=1)
    blocked = await enqueue_one(driver, key=b"key", update=Update(run_at=False, data=False))

    [answer] = await driver.reclaim(now=START + LEASE)

    assert (answer.id, answer.result) == (job.id, ReclaimResult.FAILED)
    assert await state_of(driver, blocked.id, now=START + LEASE) is JobState.READY


async def test_a_reclaim_of_a_cancelled_run_unblocks(driver: Driver) -> None:
    """K05 G18: cancelled, and the next one may go."""
    job = await running(driver, key=b"key")
    blocked = await enqueue_one(driver, key=b"key")
    await driver.cancel([job.id], now=START)

    [answer] = await driver.reclaim(now=START + LEASE)

    assert answer.result is ReclaimResult.CANCELLED
    assert [again.id for again in await reserve(driver, now=START + LEASE)] == [blocked.id]


async def test_a_hundred_enqueues_of_a_running_key_make_one_blocked_job(driver: Driver) -> None:
    """K11: they meet in one record, which runs once, after the first."""
    job = await running(driver, key=b"key")
    answers = await driver.enqueue(
        [new_job(key=b"key", payload=str(number).encode()) for number in range(100)], now=START
    )
    assert {answer.id for answer in answers[1:]} == {answers[0].id}

    await settle_one(driver, Ack(job.lease))
    [follower] = await reserve(driver, limit=10)

    assert (follower.id, follower.payload) == (answers[0].id, b"99")
    await settle_one(driver, Ack(follower.lease))
    assert await reserve(driver, limit=10) == []


async def test_equal_keys_of_one_call_apply_in_list_order(driver: Driver) -> None:
    """K11: the first is created, the others change it."""
    jobs = [new_job(key=b"key", payload=payload) for payload in (b"1", b"2", b"3")]

    answers = await driver.enqueue(jobs, now=START)

    assert [answer.result for answer in answers] == ["created", "updated", "updated"]
    assert {answer.id for answer in answers} == {jobs[0].id}
    assert (await get_one(driver, jobs[0].id)).payload == b"3"


async def test_a_queue_is_known_by_jobs_of_one_key_too(driver: Driver) -> None:
    """K11: a queue whose first call brought nothing but equal keys is listed, counted and searched."""
    [job_id, _] = await enqueue(driver, new_job(key=b"k"), new_job(key=b"k"))

    assert [info.queue for info in await driver.queues(now=START)] == [QUEUE]
    assert {name: counts.ready for name, counts in (await driver.count(now=START)).items()} == {QUEUE: 1}
    assert await found_ids(driver) == [job_id]


async def test_different_keys_and_no_key_run_side_by_side(driver: Driver) -> None:
    """K12: only equal keys exclude each other."""
    jobs = [*(new_job(key=bytes([number])) for number in range(20)), *new_jobs(20)]
    await driver.enqueue(jobs, now=START)

    assert len(await reserve(driver, limit=100)) == 40


@pytest.mark.parametrize(
    "fields",
    [
        {"key": b""},
        {"key": b"k" * 256},
        {"update": Update()},
        {"key": b"key", "update": Update(run_at="if_sooner")},  # type: ignore[arg-type]
        {"key": b"key", "update": Update(run_at=None)},  # type: ignore[arg-type]
        {"key": b"key", "update": Update(data=None)},  # type: ignore[arg-type]
    ],
)
async def test_a_bad_key_or_update_is_refused_and_stores_nothing(
    driver: Driver, fields: dict[str, Any]
) -> None:
    """K13 R004-10: also beside a good job of the same call."""
    good = new_job()

    with pytest.raises(InvalidArgument):
        await driver.enqueue([good, new_job(**fields)], now=START)

    assert await driver.get([good.id], now=START) == [None]


async def test_the_scope_of_a_key_is_its_queue(driver: Driver) -> None:
    """K14: the same key of another queue is another key."""
    await running(driver, key=b"key")

    answer = await enqueue_one(driver, queue=OTHER_QUEUE, key=b"key")

    assert answer.result is EnqueueResult.CREATED
    assert len(await reserve(driver, queues=(OTHER_QUEUE,))) == 1


async def test_an_expired_holder_counts_as_running_until_it_is_reclaimed(driver: Driver) -> None:
    """K15: an enqueue is blocked behind it, and the next reserve hands out one job of the two."""
    job = await running(driver, key=b"key")
    then = START + LEASE

    answer = await enqueue_one(driver, now=then, key=b"key", payload=b"new")
    assert answer.result is EnqueueResult.BLOCKED
    taken = await reserve(driver, now=then, limit=10)

    assert [(again.id, again.payload) for again in taken] == [(job.id, b"new")]


async def test_a_key_is_free_again_after_its_job_is_over(driver: Driver) -> None:
    """K03: finished records are history."""
    for state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED):
        await in_state(driver, state, key=b"key")

        answer = await enqueue_one(driver, key=b"key")

        assert answer.result is EnqueueResult.CREATED
        await driver.cancel([answer.id], now=START)


@pytest.mark.parametrize("settlement", [Retry, Release])
async def test_a_keyed_job_that_waits_again_absorbs_the_next_enqueue(
    driver: Driver, settlement: type[Retry | Release]
) -> None:
    """T14: after a retry or a release the key waits, it does not run."""
    job = await running(driver, key=b"key")
    await settle_one(driver, settlement(job.lease))

    answer = await enqueue_one(driver, key=b"key", payload=b"new")

    assert (answer.id, answer.result) == (job.id, EnqueueResult.UPDATED)
    assert (await reserve_one(driver)).payload == b"new"


async def test_an_absorbed_delay_counts_from_the_deciding_clock(driver: Driver) -> None:
    """K16: `delay` is run_at by the store's clock."""
    first = await enqueue_one(driver, key=b"key")

    await enqueue_one(driver, now=START + SECOND, key=b"key", delay=MINUTE)

    assert (await get_one(driver, first.id)).run_at == START + SECOND + MINUTE


async def test_an_update_to_a_due_time_makes_a_scheduled_job_ready_and_back(driver: Driver) -> None:
    """K16: the state follows run_at at once."""
    first = await enqueue_one(driver, key=b"key", run_at=START + HOUR)

    await enqueue_one(driver, key=b"key")
    assert await state_of(driver, first.id) is JobState.READY
    await enqueue_one(driver, key=b"key", run_at=START + HOUR)

    assert await state_of(driver, first.id) is JobState.SCHEDULED
    assert await reserve(driver) == []


async def test_new_priority_and_lane_of_an_update_are_obeyed(driver: Driver) -> None:
    """K16: `data` covers priority and requires; the place among equals stays."""
    late = await enqueue_one(driver, key=b"key", priority=-5)
    plain = await enqueue_one(driver)

    await enqueue_one(driver, key=b"key", priority=5)
    assert [job.id for job in await reserve(driver, limit=2)] == [late.id, plain.id]
    moved = await enqueue_one(driver, key=b"other")
    await enqueue_one(driver, key=b"other", requires="gpu")

    assert await reserve(driver) == []
    assert [job.id for job in await reserve(driver, lanes=("gpu",))] == [moved.id]


# ------------------------------------------------------------------ cancel_waiting


@pytest.mark.parametrize("state", [JobState.READY, JobState.SCHEDULED])
async def test_cancel_waiting_cancels_the_waiting_job(driver: Driver, state: JobState) -> None:
    """R004-12: and says that there was one."""
    job = await in_state(driver, state, key=b"key")

    assert await driver.cancel_waiting(QUEUE, b"key", now=START)

    assert await state_of(driver, job.id) is JobState.CANCELLED
    assert not await driver.cancel_waiting(QUEUE, b"key", now=START)
    assert await reserve(driver, now=START + HOUR) == []


async def test_cancel_waiting_leaves_a_running_job_alone(driver: Driver) -> None:
    """R004-12: only running, so there is nothing to cancel."""
    job = await running(driver, key=b"key")

    async with unchanged(driver, job.id):
        assert not await driver.cancel_waiting(QUEUE, b"key", now=START)


async def test_cancel_waiting_takes_the_blocked_job_and_leaves_the_running_one(driver: Driver) -> None:
    """R004-12 H03: the running one goes on, and its end leaves nothing behind."""
    job = await running(driver, key=b"key")
    blocked = await enqueue_one(driver, key=b"key")

    assert await driver.cancel_waiting(QUEUE, b"key", now=START)

    assert await state_of(driver, blocked.id) is JobState.CANCELLED
    assert not (await get_one(driver, job.id)).cancel_requested
    await settle_one(driver, Ack(job.lease))
    assert await reserve(driver, limit=10) == []
    assert await found_ids(driver, states=(JobState.COMPLETED,)) == [job.id]


async def test_cancel_waiting_knows_the_key_of_its_queue_only(driver: Driver) -> None:
    """R004-12 K14: no other queue, no prefix."""
    job = await in_state(driver, JobState.READY, key=b"key")

    async with unchanged(driver, job.id):
        for queue, key in [(OTHER_QUEUE, b"key"), (QUEUE, b"ke"), (QUEUE, b"key2"), (QUEUE, b"KEY")]:
            assert not await driver.cancel_waiting(queue, key, now=START)


# ------------------------------------------------------------------ requeue


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED])
async def test_requeue_of_a_free_key_waits(driver: Driver, state: JobState) -> None:
    """F11: and the key is taken again."""
    job = await in_state(driver, state, key=b"key")

    [answer] = await driver.requeue([job.id], now=START)

    assert isinstance(answer, Requeued), answer
    assert answer.state is JobState.READY
    assert (await enqueue_one(driver, key=b"key")).result is EnqueueResult.UPDATED


async def test_requeue_of_a_running_key_is_blocked_behind_it(driver: Driver) -> None:
    """K01 B25: and runs when the other one is over."""
    over = await in_state(driver, JobState.FAILED, key=b"key")
    holder = await running(driver, key=b"key")

    [answer] = await driver.requeue([over.id], now=START)

    assert isinstance(answer, Requeued), answer
    assert (answer.state, await state_of(driver, over.id)) == (JobState.BLOCKED, JobState.BLOCKED)
    assert await reserve(driver, limit=10) == []
    await settle_one(driver, Ack(holder.lease))
    assert [job.id for job in await reserve(driver)] == [over.id]


@pytest.mark.parametrize("there", [JobState.READY, JobState.SCHEDULED, JobState.BLOCKED])
async def test_requeue_of_a_key_that_waits_is_refused(driver: Driver, there: JobState) -> None:
    """F14: DuplicateJob names the one that waits, and nothing changes."""
    over = await in_state(driver, JobState.FAILED, key=b"key")
    waiting = await in_state(driver, there, key=b"key")

    async with unchanged(driver, over.id, waiting.id):
        [answer] = await driver.requeue([over.id], now=START)

    assert isinstance(answer, DuplicateJob), answer
    assert (answer.job_id, answer.existing_id) == (over.id, waiting.id)


async def test_requeue_of_two_jobs_of_one_key_lets_one_through(driver: Driver) -> None:
    """F18: each item sees what the item before it did."""
    first = await in_state(driver, JobState.FAILED, key=b"key")
    second = await in_state(driver, JobState.FAILED, key=b"key")

    answers = await driver.requeue([first.id, second.id], now=START)

    assert [type(answer) for answer in answers] == [Requeued, DuplicateJob]


async def test_settling_and_claiming_a_key_in_one_exchange(driver: Driver) -> None:
    """K03 B22: the follower of an acked key is free for the claim of the same call."""
    job = await running(driver, key=b"key")
    blocked = await enqueue_one(driver, key=b"key")

    answers = await driver.exchange([Ack(job.lease)], claim(worker_id=WORKER), now=START)

    assert [taken.id for taken in answers.claimed] == [blocked.id]
