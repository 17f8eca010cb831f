"""Rate limits of enqueues: no window (t, t + per], wherever it starts, lets in more than `count`."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import EnqueueResult
from taskharbor.errors import InvalidArgument, RateLimited
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    MINUTE,
    OTHER_QUEUE,
    QUEUE,
    SECOND,
    START,
    enqueue_one,
    in_state,
    new_job,
    new_jobs,
    requires,
    reserve_one,
    settle_one,
)
from taskharbor.testing.conformance.limits import limit
from taskharbor.testing.conformance.rates import EDGES, THREE_A_MINUTE, accepted


async def test_exactly_the_budget_gets_in(driver: Driver) -> None:
    """W11 R003-36: the next one is refused, and nothing of it is stored."""
    await limit(driver, enqueue_rate=THREE_A_MINUTE)
    await driver.enqueue(new_jobs(3), now=START)
    late = new_job()

    with pytest.raises(RateLimited) as refused:
        await driver.enqueue([late], now=START + 20 * SECOND)

    assert (refused.value.queue, refused.value.retry_after) == (QUEUE, 40 * SECOND)
    assert await driver.get([late.id], now=START) == [None]
    assert (await driver.count(now=START))[QUEUE].total == 3


async def test_a_call_of_equal_keys_as_large_as_the_budget_gets_in(driver: Driver) -> None:
    """W11: whatever way a store takes for jobs that meet each other, the budget has the same edge."""
    await limit(driver, enqueue_rate=THREE_A_MINUTE)

    answers = await driver.enqueue(new_jobs(3, key=b"k"), now=START)

    results = [answer.result for answer in answers]
    assert results == [EnqueueResult.CREATED, EnqueueResult.UPDATED, EnqueueResult.UPDATED]
    with pytest.raises(InvalidArgument):
        await driver.enqueue(new_jobs(4, key=b"other"), now=START + HOUR)


@EDGES
async def test_an_enqueue_leaves_the_window_exactly_one_period_later(
    driver: Driver, after: timedelta, free: int
) -> None:
    """W12: the first of three was 10 s before the others."""
    await limit(driver, enqueue_rate=THREE_A_MINUTE)
    await enqueue_one(driver)
    await driver.enqueue(new_jobs(2), now=START + 10 * SECOND)

    assert await accepted(driver, 2, now=START + MINUTE + after) == free


async def test_retry_after_is_when_the_whole_batch_fits(driver: Driver) -> None:
    """W11 R003-35: not when the first of it does."""
    await limit(driver, enqueue_rate=THREE_A_MINUTE)
    await enqueue_one(driver)
    await driver.enqueue(new_jobs(2), now=START + 10 * SECOND)

    with pytest.raises(RateLimited) as refused:
        await driver.enqueue(new_jobs(2), now=START + 30 * SECOND)

    assert refused.value.retry_after == 40 * SECOND
    await driver.enqueue(new_jobs(2), now=START + 30 * SECOND + refused.value.retry_after)


async def test_a_batch_gets_in_as_a_whole_or_not_at_all(driver: Driver) -> None:
    """A13 W11: and a refused one spends nothing."""
    await limit(driver, enqueue_rate=THREE_A_MINUTE)
    await enqueue_one(driver)
    batch = new_jobs(3)

    for _ in range(3):
        with pytest.raises(RateLimited):
            await driver.enqueue(batch, now=START)

    assert await driver.get([job.id for job in batch], now=START) == [None] * 3
    assert await accepted(driver, 5) == 2


async def test_a_batch_over_the_whole_budget_can_never_pass(driver: Driver) -> None:
    """A16: so it is an invalid argument, not something to wait for."""
    await limit(driver, enqueue_rate=THREE_A_MINUTE)

    with pytest.raises(InvalidArgument):
        await driver.enqueue(new_jobs(4), now=START)

    assert await accepted(driver, 5) == 3


async def test_a_repeat_after_its_key_has_expired_spends_as_a_new_job(driver: Driver) -> None:
    """M06 A13: from the instant on at which the key is free."""
    await in_state(driver, JobState.COMPLETED, idempotency_key=b"once")
    await limit(driver, enqueue_rate=RateLimit(1, MINUTE))
    free_at = START + timedelta(hours=24)

    again = await enqueue_one(driver, now=free_at, idempotency_key=b"once")

    assert again.result is EnqueueResult.CREATED
    with pytest.raises(RateLimited):
        await enqueue_one(driver, now=free_at)


async def test_duplicates_spend_nothing_and_pass_at_any_time(driver: Driver) -> None:
    """M01 R003-34: by id, by idempotency key, and inside one call."""
    await limit(driver, enqueue_rate=THREE_A_MINUTE)
    first = new_job(idempotency_key=b"once")
    await driver.enqueue([first, first, first, new_job(idempotency_key=b"once")], now=START)

    assert await accepted(driver, 5) == 2
    answers = await driver.enqueue([first, new_job(idempotency_key=b"once")] * 5, now=START)

    assert {answer.result for answer in answers} == {EnqueueResult.DUPLICATE}
    assert {answer.id for answer in answers} == {first.id}


@pytest.mark.parametrize("level", [QUEUE, EVERY_QUEUE])
async def test_a_key_that_is_over_makes_a_new_job_which_is_counted(driver: Driver, level: str) -> None:
    """M01 R003-34: also while nothing has cleared the old key away."""
    once = await enqueue_one(driver, idempotency_key=b"once")
    await settle_one(driver, Ack((await reserve_one(driver)).lease))
    await limit(driver, level, enqueue_rate=THREE_A_MINUTE)
    later = START + 25 * HOUR

    again = await enqueue_one(driver, idempotency_key=b"once", now=later)

    assert again.id != once.id
    assert await accepted(driver, 5, now=later) == 2


async def test_budgets_of_two_queues_are_their_own(driver: Driver) -> None:
    """W09 R003-36: one is spent, the other is not."""
    await limit(driver, enqueue_rate=THREE_A_MINUTE)
    await limit(driver, OTHER_QUEUE, enqueue_rate=THREE_A_MINUTE)

    assert await accepted(driver, 5) == 3
    assert await accepted(driver, 5, queue=OTHER_QUEUE) == 3


async def test_the_budget_of_the_harbor_covers_every_queue(driver: Driver) -> None:
    """W09: on top of those of the queues."""
    await limit(driver, EVERY_QUEUE, enqueue_rate=RateLimit(4, MINUTE))
    await limit(driver, enqueue_rate=THREE_A_MINUTE)

    assert await accepted(driver, 5) == 3
    assert await accepted(driver, 5, queue=OTHER_QUEUE) == 1
    assert await accepted(driver, 5, queue="kit-third") == 0


async def test_a_call_over_two_queues_is_refused_for_both(driver: Driver) -> None:
    """A13: nothing is stored in the queue that had room, and nothing spent of it."""
    requires(driver, "atomic_across_queues")
    await limit(driver, enqueue_rate=RateLimit(1, MINUTE))
    await limit(driver, OTHER_QUEUE, enqueue_rate=RateLimit(1, MINUTE))
    await enqueue_one(driver)

    for jobs in ([new_job(), new_job(queue=OTHER_QUEUE)], [new_job(queue=OTHER_QUEUE), new_job()]):
        with pytest.raises(RateLimited):
            await driver.enqueue(jobs, now=START)

    assert await accepted(driver, 2, queue=OTHER_QUEUE) == 1
