"""Retention: what prune and delete forget, what they keep, and what is never kept at all."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import CancelResult, Counts, Deleted, EnqueueResult
from taskharbor.errors import JobNotFound, JobNotInflight, NotAllowedInState
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings, Retention
from taskharbor.model.settlement import Ack, Fail, Stalled
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    ENDS,
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    OTHER_QUEUE,
    QUEUE,
    START,
    UNKNOWN_ID,
    enqueue,
    enqueue_one,
    found_ids,
    in_state,
    new_jobs,
    refused,
    reserve,
    reserve_one,
    running,
    settle_one,
    unchanged,
)

DAY = timedelta(days=1)
NOTHING = timedelta(0)
ENDED = [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED]
DEFAULTS = {JobState.COMPLETED: HOUR, JobState.FAILED: 14 * DAY, JobState.CANCELLED: 14 * DAY}


async def keep(driver: Driver, queue: str = QUEUE, retention: Retention | None = None) -> None:
    await driver.configure_queue(QueueSettings(queue=queue, retention=retention), now=START)


@pytest.mark.parametrize("state", ENDED)
async def test_a_finished_job_is_kept_exactly_for_its_retention(driver: Driver, state: JobState) -> None:
    """R08: by default an hour for success, two weeks for the rest; to the microsecond."""
    job = await in_state(driver, state)
    end = START + DEFAULTS[state]

    assert await driver.prune(now=end - MICROSECOND) == 0
    assert await driver.get([job.id], now=end) != [None]
    assert await driver.prune(now=end) == 1

    assert await driver.get([job.id], now=end) == [None]
    assert await driver.prune(now=end) == 0
    assert (await driver.count(now=end)).get(QUEUE) is None or (await driver.count(now=end))[QUEUE].total == 0


@pytest.mark.parametrize("state", [state for state in JobState if not state.is_terminal])
async def test_what_is_not_over_is_never_pruned(driver: Driver, state: JobState) -> None:
    """R07: however old it is, and whatever the retention says."""
    await keep(driver, retention=Retention(completed=NOTHING, failed=NOTHING, cancelled=NOTHING))
    job = await in_state(driver, state)

    async with unchanged(driver, job.id):
        assert await driver.prune(now=START + 3000 * DAY) == 0


async def test_each_queue_and_state_has_a_retention_of_its_own(driver: Driver) -> None:
    """R08: the queue's setting wins over the harbor's; None keeps for ever."""
    await keep(driver, retention=Retention(completed=2 * DAY, failed=None, cancelled=MINUTE))
    await keep(driver, EVERY_QUEUE, Retention(completed=MINUTE, failed=2 * MINUTE, cancelled=None))
    jobs = {
        (queue, state): await in_state(driver, state, queue=queue)
        for queue in (QUEUE, OTHER_QUEUE)
        for state in ENDED
    }

    async def there() -> set[tuple[str, JobState]]:
        found = await driver.get([job.id for job in jobs.values()], now=START)
        return {where for where, job in zip(jobs, found, strict=True) if job is not None}

    await driver.prune(now=START + MINUTE)
    assert set(jobs) - await there() == {(QUEUE, JobState.CANCELLED), (OTHER_QUEUE, JobState.COMPLETED)}
    await driver.prune(now=START + 3000 * DAY)
    assert await there() == {(QUEUE, JobState.FAILED), (OTHER_QUEUE, JobState.CANCELLED)}


async def test_a_changed_retention_holds_for_what_is_already_over(driver: Driver) -> None:
    """R08: the stored setting decides when prune comes by."""
    await in_state(driver, JobState.COMPLETED)
    await keep(driver, retention=Retention(completed=None))
    assert await driver.prune(now=START + 3000 * DAY) == 0

    await keep(driver, retention=None)

    assert await driver.prune(now=START + HOUR) == 1


async def test_prune_works_in_bounded_steps(driver: Driver) -> None:
    """R09: `limit` at a time until nothing is left."""
    await driver.enqueue(new_jobs(25), now=START)
    jobs = await reserve(driver, limit=25)
    await driver.settle([Ack(job.lease) for job in jobs], now=START)

    assert [await driver.prune(10, now=START + HOUR) for _ in range(4)] == [10, 10, 5, 0]


@pytest.mark.parametrize("others", [0, 1, 2])
async def test_a_job_that_was_requeued_is_not_pruned_with_those_it_ended_with(
    driver: Driver, others: int
) -> None:
    """R07 R09: however many were settled in the same call."""
    await driver.enqueue(new_jobs(others + 1), now=START)
    jobs = await reserve(driver, limit=others + 1)
    await driver.settle([Ack(job.lease) for job in jobs], now=START)
    await driver.requeue([jobs[0].id], now=START)

    assert await driver.prune(now=START + HOUR) == others

    assert await found_ids(driver, now=START + HOUR) == [jobs[0].id]
    assert [job.id for job in await reserve(driver, now=START + HOUR)] == [jobs[0].id]


async def test_a_pruned_job_is_unknown_to_every_verb(driver: Driver) -> None:
    """R07: gone, and its id may be used again."""
    job = await running(driver)
    await settle_one(driver, Ack(job.lease))
    then = START + HOUR
    await driver.prune(now=then)

    [cancelled] = await driver.cancel([job.id], now=then)
    [requeued] = await driver.requeue([job.id], now=then)
    [deleted] = await driver.delete([job.id], now=then)

    assert cancelled.result is CancelResult.NOT_FOUND
    assert isinstance(requeued, JobNotFound)
    assert isinstance(deleted, JobNotFound)
    assert isinstance(await refused(driver, Ack(job.lease), now=then), JobNotInflight)
    assert (await enqueue_one(driver, id=job.id, now=then)).result is EnqueueResult.CREATED


async def test_a_job_that_ended_twice_at_one_instant_is_pruned_once(driver: Driver) -> None:
    """R09: counts and the answer of prune know it as one job."""
    job = await in_state(driver, JobState.COMPLETED)
    await driver.requeue([job.id], now=START)
    [again] = await reserve(driver)
    await driver.settle([Ack(again.lease)], now=START)

    assert await driver.prune(now=START + HOUR) == 1
    assert (await driver.count(now=START + HOUR)).get(QUEUE, Counts()).total == 0


async def test_a_requeued_job_is_not_pruned_by_its_first_end(driver: Driver) -> None:
    """R08: the retention counts from the end that came last."""
    job = await in_state(driver, JobState.COMPLETED)
    await driver.requeue([job.id], now=START + 59 * MINUTE)
    assert await driver.prune(now=START + 5 * HOUR) == 0
    again = await reserve_one(driver, now=START + 5 * HOUR)
    await settle_one(driver, Ack(again.lease), now=START + 5 * HOUR)

    assert await driver.prune(now=START + 6 * HOUR - MICROSECOND) == 0
    assert await driver.prune(now=START + 6 * HOUR) == 1


# ------------------------------------------------------------------ retention zero


@pytest.mark.parametrize("end", ["Ack", "Fail", "Cancelled"])
async def test_retention_zero_forgets_in_the_step_that_ends_the_job(driver: Driver, end: str) -> None:
    """R08 R003-13: answered with its state, and nothing left to look at."""
    await keep(driver, retention=Retention(completed=NOTHING, failed=NOTHING, cancelled=NOTHING))
    job = await running(driver)

    answer = await settle_one(driver, ENDS[end](job.lease))

    assert answer.state.is_terminal
    assert await driver.get([job.id], now=START) == [None]
    assert await found_ids(driver) == []
    assert isinstance(await refused(driver, ENDS[end](job.lease)), JobNotInflight)


async def test_retention_zero_holds_for_cancel_and_reclaim_too(driver: Driver) -> None:
    """R08 H01: every way to end."""
    await keep(driver, retention=Retention(failed=NOTHING, cancelled=NOTHING))
    waiting = await enqueue_one(driver, run_at=START + HOUR)
    [answer] = await driver.cancel([waiting.id], now=START)
    stalled = await running(driver, max_stalls=1)
    await driver.reclaim(now=START + LEASE)
    died = await running(driver, max_stalls=1)
    await settle_one(driver, Stalled(died.lease, "died"))

    assert (answer.result, answer.state) == (CancelResult.CANCELLED, JobState.CANCELLED)
    assert await driver.get([waiting.id, stalled.id, died.id], now=START) == [None] * 3


@pytest.mark.parametrize("has_run", [False, True], ids=["new", "released"])
async def test_retention_zero_takes_a_cancelled_job_out_of_the_line(driver: Driver, has_run: bool) -> None:
    """R08 H01: it is not counted any more, and not found there."""
    await keep(driver, retention=Retention(cancelled=NOTHING))
    job = await enqueue_one(driver)
    if has_run:
        await settle_one(driver, ENDS["Release"]((await reserve_one(driver)).lease))

    await driver.cancel([job.id], now=START)

    assert (await driver.count([QUEUE], now=START))[QUEUE].total == 0
    assert await reserve(driver, limit=10) == []


async def test_retention_zero_still_unblocks_and_still_makes_a_failure_job(driver: Driver) -> None:
    """F17 R004-31: what follows from the end does not need the record."""
    zero = Retention(failed=NOTHING)
    await driver.configure_queue(QueueSettings(queue=QUEUE, retention=zero, fail_queue="kit-dead"), now=START)
    job = await running(driver, key=b"key")
    blocked = await enqueue_one(driver, key=b"key")

    await settle_one(driver, Fail(job.lease, "broken"))

    assert await driver.get([job.id], now=START) == [None]
    assert [again.id for again in await reserve(driver)] == [blocked.id]
    assert len(await reserve(driver, queues=("kit-dead",))) == 1


# ------------------------------------------------------------------ delete


@pytest.mark.parametrize("state", ENDED)
async def test_delete_forgets_a_finished_job_at_once(driver: Driver, state: JobState) -> None:
    """R07 H13: and leaves no marker for a later job of that id."""
    job = await in_state(driver, state)

    [answer] = await driver.delete([job.id], now=START)

    assert isinstance(answer, Deleted), answer
    assert (answer.id, answer.at) == (job.id, START)
    assert await driver.get([job.id], now=START) == [None]
    assert (await enqueue_one(driver, id=job.id)).result is EnqueueResult.CREATED
    assert len(await reserve(driver)) == 1


@pytest.mark.parametrize("state", [state for state in JobState if not state.is_terminal])
async def test_delete_refuses_what_is_not_over(driver: Driver, state: JobState) -> None:
    """R07: it says in which state the job is, and changes nothing."""
    job = await in_state(driver, state)

    async with unchanged(driver, job.id):
        [answer] = await driver.delete([job.id], now=START)

    assert isinstance(answer, NotAllowedInState), answer
    assert (answer.job_id, answer.state) == (job.id, state)


async def test_delete_answers_each_id_for_itself(driver: Driver) -> None:
    """R07: one that is unknown or alive does not hold up the others."""
    over = await in_state(driver, JobState.FAILED)
    [waiting] = await enqueue(driver, *new_jobs(1))

    answers = await driver.delete([UNKNOWN_ID, over.id, waiting, over.id], now=START)

    assert [type(answer) for answer in answers] == [JobNotFound, Deleted, NotAllowedInState, JobNotFound]
    assert await driver.delete([], now=START) == []
