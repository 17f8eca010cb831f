"""H: a job that is not wanted any more."""

from __future__ import annotations

import msgspec
import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import CancelAnswer, CancelResult
from taskharbor.errors import InvalidArgument
from taskharbor.model.job import FailureKind
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack, Cancelled, Fail, Release, Retry, Settlement, Stalled
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.testing.conformance.kit import (
    ENDS,
    HOUR,
    LEASE,
    MINUTE,
    OTHER_QUEUE,
    QUEUE,
    SECOND,
    START,
    UNKNOWN_ID,
    enqueue_one,
    found_ids,
    get_one,
    in_state,
    new_id,
    reserve,
    reserve_one,
    running,
    settle_one,
    state_of,
    unchanged,
)

END = START + LEASE
LATER = START + SECOND


@pytest.mark.parametrize("state", [JobState.READY, JobState.SCHEDULED, JobState.BLOCKED])
async def test_a_waiting_job_is_cancelled_at_once(driver: Driver, state: JobState) -> None:
    """H01 H02 H03 R003-20 R003-24 R003-25: the whole record, with a reason.

    It is never handed out, whatever the time.
    """
    job = await in_state(driver, state)

    [answer] = await driver.cancel([job.id], now=LATER)
    after = await get_one(driver, job.id, now=LATER)

    assert answer == CancelAnswer(job.id, CancelResult.CANCELLED, JobState.CANCELLED, LATER, job.version + 1)
    assert after == msgspec.structs.replace(
        job,
        state=JobState.CANCELLED,
        last_error="cancelled while it waited",
        finished_at=LATER,
        update=None,
        updated_at=LATER,
        version=job.version + 1,
    )
    taken = await reserve(driver, limit=10, now=START + 24 * HOUR)
    assert job.id not in [entry.id for entry in taken]


async def test_cancelling_a_blocked_job_leaves_its_key_alone(driver: Driver) -> None:
    """H03: the running one goes on and ends, and the key is free for a new one."""
    job = await running(driver, key=b"k")
    blocked = await enqueue_one(driver, key=b"k")
    before = await get_one(driver, job.id)

    await driver.cancel([blocked.id], now=START)
    untouched = await get_one(driver, job.id)
    await settle_one(driver, Ack(job.lease))
    fresh = await enqueue_one(driver, key=b"k")

    assert untouched == before
    assert fresh.result == "created"
    assert [entry.id for entry in await reserve(driver, limit=10)] == [fresh.id]


async def test_a_running_job_is_asked_to_stop(driver: Driver) -> None:
    """H04: requested, not over: the record carries it, and the lease stays as it was."""
    job = await running(driver)
    before = await get_one(driver, job.id)

    [answer] = await driver.cancel([job.id], now=LATER)
    after = await get_one(driver, job.id, now=LATER)

    assert answer == CancelAnswer(job.id, CancelResult.REQUESTED, JobState.RUNNING, LATER, job.version + 1)
    assert after == msgspec.structs.replace(
        before, cancel_requested=True, updated_at=LATER, version=before.version + 1
    )


@pytest.mark.parametrize("end", ENDS)
async def test_a_cancel_request_beats_every_settlement(driver: Driver, end: str) -> None:
    """H05 H06 H07 R003-22 R003-23: cancelled, nothing counted, no result, no failure job, never again."""
    await driver.configure_queue(QueueSettings(queue=QUEUE, fail_queue=OTHER_QUEUE), now=START)
    job = await running(driver, max_attempts=1, max_stalls=1)
    await driver.cancel([job.id], now=START)
    settlements: dict[str, Settlement] = {
        "Ack": Ack(job.lease, b"finished all the same"),
        "Retry": Retry(job.lease, MINUTE, "timed out", FailureKind.TIMEOUT),
        "Fail": Fail(job.lease, "broken"),
        "Stalled": Stalled(job.lease, "killed"),
        "Cancelled": Cancelled(job.lease),
        "Release": Release(job.lease),
    }

    answer = await settle_one(driver, settlements[end], now=LATER)
    record = await get_one(driver, job.id, now=LATER)

    assert (answer.state, record.state) == (JobState.CANCELLED, JobState.CANCELLED)
    assert (record.attempts, record.stalls, record.result) == (0, 0, None)
    assert (record.failed_at, record.failure_kind) == (None, None)
    assert (record.finished_at, record.settled_token) == (LATER, job.token)
    assert await found_ids(driver, queue=OTHER_QUEUE) == []
    assert await reserve(driver, limit=10, now=START + HOUR) == []


async def test_an_expired_lease_ends_a_cancelled_run(driver: Driver) -> None:
    """H08 R003-24: reserve alone settles it as cancelled, and does not hand it out."""
    job = await running(driver)
    await driver.cancel([job.id], now=START)

    taken = await reserve(driver, limit=10, now=END)
    record = await get_one(driver, job.id, now=END)

    assert taken == []
    assert (record.state, record.stalls) == (JobState.CANCELLED, 0)


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_what_is_over_stays_as_it_ended(driver: Driver, state: JobState) -> None:
    """H09 H10: the answer says so, and how; nothing changes."""
    over = await in_state(driver, state)

    async with unchanged(driver, over.id, now=LATER):
        [answer] = await driver.cancel([over.id], now=LATER)

    assert answer == CancelAnswer(over.id, CancelResult.ALREADY_OVER, state, LATER, over.version)


async def test_cancelling_twice_is_cancelling_once(driver: Driver) -> None:
    """H11: the same answer for a running job and nothing changed; a waiting one is over by then."""
    job, waiting = await running(driver), await enqueue_one(driver)
    first = await driver.cancel([job.id, waiting.id], now=START)

    async with unchanged(driver, job.id, waiting.id, now=LATER):
        second = await driver.cancel([job.id, waiting.id], now=LATER)

    assert [answer.result for answer in first] == [CancelResult.REQUESTED, CancelResult.CANCELLED]
    assert [answer.result for answer in second] == [CancelResult.REQUESTED, CancelResult.ALREADY_OVER]


async def test_an_unknown_job_cannot_be_cancelled(driver: Driver) -> None:
    """H12 R003-20: not found, and no record comes into being."""
    async with unchanged(driver, UNKNOWN_ID):
        [answer] = await driver.cancel([UNKNOWN_ID], now=START)

    assert (answer.id, answer.result, answer.state) == (UNKNOWN_ID, CancelResult.NOT_FOUND, None)


async def test_a_cancel_leaves_no_mark_for_a_later_job(driver: Driver) -> None:
    """H13: an id cancelled before it existed, and a key whose last job was cancelled, start afresh."""
    early = new_id()
    await driver.cancel([early], now=START)
    old = await running(driver, key=b"k")
    await driver.cancel([old.id], now=START)
    await settle_one(driver, Cancelled(old.lease))

    await enqueue_one(driver, id=early)
    await enqueue_one(driver, key=b"k")
    jobs = await reserve(driver, limit=2)

    assert [job.cancel_requested for job in jobs] == [False, False]
    for job in jobs:
        assert (await settle_one(driver, Ack(job.lease))).state is JobState.COMPLETED


async def test_a_cancel_request_lives_as_long_as_its_job(driver: Driver) -> None:
    """H04 R003-26: three years of heartbeats later it is still there."""
    job = await running(driver)
    await driver.cancel([job.id], now=START)
    year = 365 * 24 * HOUR
    lease, now = job.lease, START
    for _ in range(3):
        [answer] = await driver.extend_leases([lease], 2 * year, now=now)
        assert getattr(answer, "cancel_requested", None) is True
        lease, now = answer.lease, now + year  # type: ignore[union-attr]

    assert (await settle_one(driver, Ack(lease), now=now)).state is JobState.CANCELLED


async def test_cancels_are_answered_one_by_one(driver: Driver) -> None:
    """H14: in the order asked, each for itself, an id given twice included."""
    ready, job = await enqueue_one(driver, queue=OTHER_QUEUE), await running(driver)
    over = await in_state(driver, JobState.COMPLETED)

    answers = await driver.cancel([job.id, UNKNOWN_ID, ready.id, over.id, ready.id], now=START)

    assert [(answer.id, answer.result) for answer in answers] == [
        (job.id, CancelResult.REQUESTED),
        (UNKNOWN_ID, CancelResult.NOT_FOUND),
        (ready.id, CancelResult.CANCELLED),
        (over.id, CancelResult.ALREADY_OVER),
        (ready.id, CancelResult.ALREADY_OVER),
    ]
    assert await driver.cancel([], now=START) == []


@pytest.mark.parametrize("ids", [["no id"], [""], ["0" * 36], [UNKNOWN_ID.upper()]], ids=repr)
async def test_a_malformed_id_cannot_be_cancelled(driver: Driver, ids: list[str]) -> None:
    """H12: an invalid argument, before any of the call is done."""
    answer = await enqueue_one(driver)

    async with unchanged(driver, answer.id):
        with pytest.raises(InvalidArgument):
            await driver.cancel([answer.id, *ids], now=START)


async def test_a_handler_may_say_itself_that_its_job_is_not_needed(driver: Driver) -> None:
    """H05: Cancelled without any request: over, with the reason, never retried and never dead."""
    await driver.configure_queue(QueueSettings(queue=QUEUE, fail_queue=OTHER_QUEUE), now=START)
    job = await running(driver)

    answer = await settle_one(driver, Cancelled(job.lease, "nothing to do"))
    record = await get_one(driver, job.id)

    assert (answer.state, record.last_error) == (JobState.CANCELLED, "nothing to do")
    assert (record.attempts, record.stalls, record.cancel_requested) == (0, 0, False)
    assert await found_ids(driver, queue=OTHER_QUEUE) == []


# ------------------------------------------------------------------ by key


@pytest.mark.parametrize("state", [JobState.READY, JobState.SCHEDULED, JobState.BLOCKED])
async def test_the_waiting_job_of_a_key_can_be_cancelled(driver: Driver, state: JobState) -> None:
    """H01 H02 H03: cancel_waiting says that there was one; asked again, that there is none."""
    job = await in_state(driver, state, key=b"k")

    answers = [await driver.cancel_waiting(QUEUE, b"k", now=LATER) for _ in range(2)]

    assert answers == [True, False]
    assert await state_of(driver, job.id, now=LATER) is JobState.CANCELLED


async def test_the_running_job_of_a_key_is_left_alone(driver: Driver) -> None:
    """H04: without one blocked behind it there is nothing to cancel; other queues and keys neither."""
    job = await running(driver, key=b"k")
    others = [await enqueue_one(driver, key=b"k", queue=OTHER_QUEUE), await enqueue_one(driver, key=b"other")]

    async with unchanged(driver, job.id, *(answer.id for answer in others)):
        assert await driver.cancel_waiting(QUEUE, b"k", now=START) is False
        assert await driver.cancel_waiting(QUEUE, b"never used", now=START) is False

    assert (await settle_one(driver, Ack(job.lease))).state is JobState.COMPLETED
    assert (await reserve_one(driver)).id == others[1].id
