"""F: the way back: what is over runs again, with other fields or later."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query, Requeued
from taskharbor.errors import (
    InvalidArgument,
    JobNotFound,
    JobNotInflight,
    LeaseMismatch,
    NotAllowedInState,
    WrongQueue,
)
from taskharbor.model.edit import Edit
from taskharbor.model.settlement import Ack, Fail
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.testing.conformance.dead_letters import END, FULL
from taskharbor.testing.conformance.kit import (
    HOUR,
    MICROSECOND,
    MINUTE,
    OTHER_QUEUE,
    OTHER_WORKER,
    QUEUE,
    SECOND,
    START,
    UNKNOWN_ID,
    enqueue_one,
    get_one,
    in_state,
    new_jobs,
    refused,
    reserve,
    reserve_one,
    running,
    settle_one,
    unchanged,
)


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_whatever_is_over_can_be_requeued(driver: Driver, state: JobState) -> None:
    """F11: a fresh start under the same id: counts, error, result, end and cancel request are gone."""
    over = await in_state(driver, state, **FULL)
    now = START + MINUTE

    [answer] = await driver.requeue([over.id], now=now)
    after = await get_one(driver, over.id, now=now)

    assert answer == Requeued(over.id, JobState.READY, now, over.version + 1)
    assert after == msgspec.structs.replace(
        over,
        state=JobState.READY,
        run_at=now,
        attempts=0,
        stalls=0,
        last_error=None,
        failed_at=None,
        failure_kind=None,
        result=None,
        progress=None,
        finished_at=None,
        settled_token=None,
        cancel_requested=False,
        updated_at=now,
        version=over.version + 1,
    )
    assert (await reserve_one(driver, now=now, lanes=("gpu",))).id == over.id


async def test_a_requeue_that_names_a_queue_leaves_jobs_of_others_alone(driver: Driver) -> None:
    """R001-27: each item for itself."""
    mine = await in_state(driver, JobState.FAILED)
    other = await in_state(driver, JobState.FAILED, queue=OTHER_QUEUE)

    answers = await driver.requeue([other.id, mine.id, UNKNOWN_ID], queue=QUEUE, now=END)

    assert await get_one(driver, other.id, now=END) == other
    assert isinstance(answers[0], WrongQueue)
    assert (answers[0].job_id, answers[0].queue, answers[0].wanted) == (other.id, OTHER_QUEUE, QUEUE)
    assert isinstance(answers[1], Requeued)
    assert isinstance(answers[2], JobNotFound)
    with pytest.raises(InvalidArgument):
        await driver.requeue([mine.id], queue="*", now=END)


async def test_a_cancelled_job_lives_again_without_its_cancel_request(driver: Driver) -> None:
    """F11: the request belonged to the life that it ended."""
    job = await running(driver)
    await driver.cancel([job.id], now=START)
    await settle_one(driver, Ack(job.lease, b"too late"))

    await driver.requeue([job.id], now=START)
    again = await reserve_one(driver)
    answer = await settle_one(driver, Ack(again.lease, b"done"))

    assert (again.cancel_requested, answer.state) == (False, JobState.COMPLETED)


async def test_a_replay_does_not_jump_the_queue(driver: Driver) -> None:
    """F11: run_at = now, so a job that waits already goes first."""
    over = await in_state(driver, JobState.FAILED)
    waiting = await enqueue_one(driver, now=START + SECOND)

    await driver.requeue([over.id], now=START + MINUTE)
    taken = await reserve(driver, limit=2, now=START + MINUTE)

    assert [job.id for job in taken] == [waiting.id, over.id]


@pytest.mark.parametrize("later", [{"delay": MINUTE}, {"run_at": START + MINUTE}], ids=str)
async def test_a_replay_can_wait(driver: Driver, later: dict[str, Any]) -> None:
    """F11 N14: by delay or by run_at, eligible exactly then."""
    over = await in_state(driver, JobState.FAILED)

    [answer] = await driver.requeue([over.id], now=START, **later)
    early = await reserve(driver, now=START + MINUTE - MICROSECOND)
    again = await reserve_one(driver, now=START + MINUTE)

    assert isinstance(answer, Requeued)
    assert (answer.state, early, again.id) == (JobState.SCHEDULED, [], over.id)


async def test_a_replay_can_be_edited(driver: Driver) -> None:
    """F11: what is given replaces, what is left out stays; id, queue and history never change."""
    over = await in_state(driver, JobState.FAILED, **FULL)
    edit = Edit(payload=b"mended", priority=-3, max_attempts=9, min_backoff=SECOND)

    await driver.requeue([over.id], edit=edit, now=START)
    after = await get_one(driver, over.id)

    assert (after.payload, after.priority, after.max_attempts, after.min_backoff) == (
        b"mended",
        -3,
        9,
        SECOND,
    )
    assert (after.type, after.headers, after.requires) == (over.type, over.headers, over.requires)
    assert (after.queue, after.key, after.seq, after.history) == (
        over.queue,
        over.key,
        over.seq,
        over.history,
    )


async def test_a_replay_may_keep_its_counts(driver: Driver) -> None:
    """F12: then the next failure is counted on top of the old ones."""
    job = await running(driver, max_attempts=2)
    await settle_one(driver, Fail(job.lease, "broken"))

    await driver.requeue([job.id], reset_counts=False, now=START)
    again = await reserve_one(driver)
    await settle_one(driver, Fail(again.lease, "broken again"))
    after = await get_one(driver, job.id)

    assert (again.attempts, again.last_error) == (1, "broken")
    assert (after.attempts, after.last_error) == (2, "broken again")


async def test_the_fence_goes_on_rising_over_lives(driver: Driver) -> None:
    """F13: a requeue is no beginning, not even at an earlier hour."""
    job = await running(driver)
    await settle_one(driver, Fail(job.lease))

    await driver.requeue([job.id], now=START - HOUR)
    again = await reserve_one(driver, now=START - HOUR)

    assert again.fence > job.fence


async def test_only_what_is_over_can_be_requeued(driver: Driver) -> None:
    """F14: a second requeue is refused, as is one of anything that lives; unknown ids are not found."""
    over = await in_state(driver, JobState.FAILED)
    alive = [
        (await in_state(driver, state, queue=f"kit-{state}")).id
        for state in (JobState.READY, JobState.SCHEDULED, JobState.BLOCKED, JobState.RUNNING)
    ]
    await driver.requeue([over.id], now=START)

    async with unchanged(driver, over.id, *alive):
        answers = await driver.requeue([over.id, *alive, UNKNOWN_ID], now=START)

    assert [type(answer) for answer in answers] == [NotAllowedInState] * 5 + [JobNotFound]


async def test_one_id_twice_in_one_call_is_requeued_once(driver: Driver) -> None:
    """F14: each for itself, in list order; a refused one does not stop the others."""
    first, second = await in_state(driver, JobState.FAILED), await in_state(driver, JobState.COMPLETED)

    answers = await driver.requeue([first.id, first.id, UNKNOWN_ID, second.id], now=START)

    assert [type(answer) for answer in answers] == [Requeued, NotAllowedInState, JobNotFound, Requeued]


async def test_the_token_of_an_earlier_life_opens_nothing(driver: Driver) -> None:
    """F15: not while it waits again, not while another worker runs it."""
    job = await running(driver)
    await settle_one(driver, Fail(job.lease))
    await driver.requeue([job.id], now=START)

    async with unchanged(driver, job.id):
        waiting = await refused(driver, Ack(job.lease))
    await reserve_one(driver, worker_id=OTHER_WORKER)
    async with unchanged(driver, job.id):
        other = await refused(driver, Ack(job.lease))

    assert (type(waiting), type(other)) == (JobNotInflight, LeaseMismatch)


@pytest.mark.parametrize(
    "fields",
    [
        {"edit": Edit(priority=101)},
        {"edit": Edit(type="no name")},
        {"delay": SECOND, "run_at": START},
        {"delay": -SECOND},
    ],
    ids=["priority", "type", "both", "negative"],
)
async def test_a_requeue_that_makes_no_sense_is_refused(driver: Driver, fields: dict[str, Any]) -> None:
    """F11: an invalid argument comes before any change."""
    over = await in_state(driver, JobState.FAILED)

    async with unchanged(driver, over.id):
        with pytest.raises(InvalidArgument):
            await driver.requeue([over.id], now=START, **fields)


async def test_dead_letters_can_be_replayed_page_by_page(driver: Driver) -> None:
    """F18: requeue while paging: none is skipped and none comes twice."""
    await driver.enqueue(new_jobs(25), now=START)
    dead = await reserve(driver, limit=25)
    await driver.settle([Fail(job.lease) for job in dead], now=START)
    query, replayed = Query(queue=QUEUE, states=(JobState.FAILED,), limit=10), []
    while True:
        page = await driver.find(query, now=START)
        replayed += [job.id for job in page.jobs]
        answers = await driver.requeue([job.id for job in page.jobs], now=START)
        assert all(isinstance(answer, Requeued) for answer in answers)
        if page.next_cursor is None:
            break
        query = msgspec.structs.replace(query, cursor=page.next_cursor)

    taken = await reserve(driver, limit=50)

    assert sorted(replayed) == sorted(job.id for job in dead)
    assert sorted(job.id for job in taken) == sorted(job.id for job in dead)
