"""Rate limits of starts, and of changes and clocks: no window (t, t + per] sees more than `count`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.errors import RateLimited
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE
from taskharbor.model.settlement import Ack, Release, Retry
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    OTHER_QUEUE,
    OTHER_WORKER,
    QUEUE,
    SECOND,
    START,
    WORKER,
    enqueue_one,
    get_one,
    new_jobs,
    requires,
    reserve,
    reserve_one,
    settle_one,
    unchanged,
)
from taskharbor.testing.conformance.limits import limit, taken, two_queues

THREE_A_MINUTE = RateLimit(3, MINUTE)
EDGES = pytest.mark.parametrize(
    ("after", "free"),
    [(-MICROSECOND, 0), (timedelta(0), 1), (MICROSECOND, 1)],
    ids=["1 µs early", "on time", "1 µs late"],
)


async def accepted(driver: Driver, count: int, *, now: datetime = START, **fields: Any) -> int:
    """How many of `count` single enqueues got in."""
    entered = 0
    for _ in range(count):
        try:
            await enqueue_one(driver, now=now, **fields)
        except RateLimited:
            continue
        entered += 1
    return entered


# ------------------------------------------------------------------ execute


async def test_a_claim_is_filled_up_to_the_budget(driver: Driver) -> None:
    """W11 W14: over it comes an empty list, not an error."""
    await limit(driver, execute_rate=THREE_A_MINUTE)
    await driver.enqueue(new_jobs(9), now=START)

    assert [len(await reserve(driver, limit=2)) for _ in range(3)] == [2, 1, 0]


@EDGES
async def test_a_start_leaves_the_window_exactly_one_period_later(
    driver: Driver, after: timedelta, free: int
) -> None:
    """W12: the first of three was 10 s before the others."""
    await limit(driver, execute_rate=THREE_A_MINUTE)
    await driver.enqueue(new_jobs(9), now=START)
    await reserve(driver, lease_for=HOUR)
    await reserve(driver, now=START + 10 * SECOND, limit=9, lease_for=HOUR)

    assert len(await reserve(driver, now=START + MINUTE + after, limit=9)) == free


async def test_no_window_of_any_start_sees_more_than_the_budget(driver: Driver) -> None:
    """W12 AM48: claims at uneven moments over five minutes, counted from every start."""
    await limit(driver, execute_rate=THREE_A_MINUTE)
    await driver.enqueue(new_jobs(60), now=START)
    starts: list[datetime] = []
    for step in range(100):
        now = START + step * timedelta(seconds=3.1)
        starts += [now] * len(await reserve(driver, now=now, limit=1 + step % 3, lease_for=HOUR))

    assert len(starts) >= 14, "the budget is there to be used"
    for first in starts:
        assert len([at for at in starts if first <= at < first + MINUTE]) <= 3


async def test_only_jobs_that_were_handed_out_are_paid_for(driver: Driver) -> None:
    """W14 R003-34: not empty claims, not claims that another gate refused."""
    await limit(driver, execute_rate=THREE_A_MINUTE)
    for _ in range(5):
        assert await reserve(driver, limit=5) == []
    await driver.enqueue(new_jobs(5), now=START)
    gates: tuple[dict[str, Any], ...] = ({"paused": True}, {"max_running": 0})
    for gate in gates:
        await limit(driver, **gate)
        assert await reserve(driver, limit=5) == []
        await limit(driver, paused=False, max_running=None)

    assert len(await reserve(driver, limit=5)) == 3


async def test_a_harbor_that_says_no_spends_nothing_of_the_queue(driver: Driver) -> None:
    """W09 R003-34: budgets are spent together or not at all."""
    await limit(driver, execute_rate=THREE_A_MINUTE)
    await limit(driver, EVERY_QUEUE, execute_rate=RateLimit(1, MINUTE))
    await driver.enqueue(new_jobs(5), now=START)
    assert [len(await reserve(driver, limit=5)) for _ in range(3)] == [1, 0, 0]

    await limit(driver, EVERY_QUEUE, execute_rate=None)

    assert len(await reserve(driver, limit=5)) == 2


async def test_enqueue_and_execute_have_budgets_of_their_own(driver: Driver) -> None:
    """R003-35: one job does not cost two."""
    await limit(driver, enqueue_rate=THREE_A_MINUTE, execute_rate=THREE_A_MINUTE)
    await driver.enqueue(new_jobs(3), now=START)

    assert len(await reserve(driver, limit=5)) == 3


async def test_a_throttled_queue_never_delays_another_one(driver: Driver) -> None:
    """W14: it is passed over inside the same claim."""
    await limit(driver, execute_rate=RateLimit(1, MINUTE))
    await two_queues(driver, 3)

    assert await taken(driver) == [QUEUE] + [OTHER_QUEUE] * 3
    await two_queues(driver, 2)
    assert await taken(driver) == [OTHER_QUEUE] * 2


async def test_a_throttled_job_keeps_its_place_and_its_counts(driver: Driver) -> None:
    """R003-33: it was never taken out."""
    await limit(driver, execute_rate=RateLimit(1, MINUTE))
    jobs = new_jobs(3)
    await driver.enqueue(jobs, now=START)
    await reserve_one(driver, lease_for=HOUR)

    async with unchanged(driver, *(job.id for job in jobs)):
        for second in range(1, 5):
            assert await reserve(driver, now=START + second * SECOND) == []
    assert (await reserve_one(driver, now=START + MINUTE)).id == jobs[1].id


async def test_every_start_of_the_same_job_counts(driver: Driver) -> None:
    """W11: a retry and a release are starts again."""
    await limit(driver, execute_rate=THREE_A_MINUTE)
    await driver.enqueue(new_jobs(1), now=START)
    first = await reserve_one(driver)
    await settle_one(driver, Retry(first.lease, reason="broken"))
    second = await reserve_one(driver)
    await settle_one(driver, Release(second.lease))
    third = await reserve_one(driver)
    await settle_one(driver, Release(third.lease))

    assert await reserve(driver) == []
    assert (await get_one(driver, first.id)).starts == 3


# ------------------------------------------------------------------ one worker


async def test_the_budget_of_a_worker_is_its_own(driver: Driver) -> None:
    """W11 R003-36: over all queues, and not another worker's."""
    await two_queues(driver)
    rate = RateLimit(3, MINUTE)

    assert len(await taken(driver, rate=rate, limit=2)) == 2
    assert len(await taken(driver, rate=rate, queues=(OTHER_QUEUE,))) == 1
    assert await taken(driver, rate=rate) == []
    assert len(await taken(driver, rate=rate, worker_id=OTHER_WORKER)) == 3


@EDGES
async def test_the_budget_of_a_worker_has_the_same_edges(driver: Driver, after: timedelta, free: int) -> None:
    """W12: one microsecond either way."""
    await driver.enqueue(new_jobs(9), now=START)
    rate = RateLimit(3, MINUTE)
    await reserve(driver, rate=rate, lease_for=HOUR)
    await reserve(driver, rate=rate, now=START + SECOND, limit=9, lease_for=HOUR)

    assert len(await reserve(driver, rate=rate, now=START + MINUTE + after, limit=9)) == free


@pytest.mark.parametrize("name", ["worker", "execute", "enqueue", WORKER])
async def test_a_queue_cannot_be_taken_for_a_worker(driver: Driver, name: str) -> None:
    """R003-36: whatever it is called, and whatever the worker is called."""
    await limit(driver, name, execute_rate=RateLimit(2, MINUTE), enqueue_rate=RateLimit(8, MINUTE))
    await driver.enqueue(new_jobs(6, queue=name), now=START)
    await driver.enqueue(new_jobs(6), now=START)

    rate = RateLimit(5, MINUTE)
    assert len(await reserve(driver, queues=(name,), worker_id=name, rate=rate, limit=9)) == 2
    assert len(await reserve(driver, worker_id=name, rate=rate, limit=9)) == 3


# ------------------------------------------------------------------ clocks and changes


async def test_a_clock_that_steps_back_gives_nothing_extra(driver: Driver) -> None:
    """W13: neither to come in nor to go out."""
    await limit(driver, enqueue_rate=RateLimit(6, MINUTE), execute_rate=THREE_A_MINUTE)
    await driver.enqueue(new_jobs(6), now=START)
    assert len(await reserve(driver, limit=9, lease_for=2 * HOUR)) == 3

    assert await accepted(driver, 1, now=START - HOUR) == 0
    assert await reserve(driver, now=START - HOUR + LEASE, limit=9) == []
    assert await reserve(driver, now=START + SECOND, limit=9) == []
    assert len(await reserve(driver, now=START + MINUTE, limit=9)) == 3


@pytest.mark.parametrize("level", [QUEUE, "*"])
async def test_a_clock_that_is_set_back_stops_an_execute_rate_for_one_window(
    driver: Driver, level: str
) -> None:
    """W13: what was spent in its future counts for one window from when that is seen, and then no more."""
    await limit(driver, level, execute_rate=THREE_A_MINUTE)
    await driver.enqueue(new_jobs(12), now=START)
    assert len(await reserve(driver, limit=2, lease_for=9 * HOUR)) == 2
    back = START - 2 * HOUR

    assert len(await reserve(driver, limit=9, now=back, lease_for=9 * HOUR)) == 1
    assert await reserve(driver, limit=9, now=back + MINUTE - MICROSECOND) == []
    assert len(await reserve(driver, limit=9, now=back + MINUTE, lease_for=9 * HOUR)) == 3
    assert await reserve(driver, limit=9, now=back + 2 * MINUTE - MICROSECOND) == []
    assert len(await reserve(driver, limit=9, now=back + 2 * MINUTE, lease_for=9 * HOUR)) == 3


async def test_a_clock_that_is_set_back_stops_the_rate_of_a_worker_for_one_window(driver: Driver) -> None:
    """W13: the same for Claim.rate."""
    await driver.enqueue(new_jobs(12), now=START)
    assert len(await reserve(driver, limit=9, rate=THREE_A_MINUTE, lease_for=9 * HOUR)) == 3
    back = START - 2 * HOUR

    assert await reserve(driver, limit=9, rate=THREE_A_MINUTE, now=back) == []
    assert await reserve(driver, limit=9, rate=THREE_A_MINUTE, now=back + MINUTE - MICROSECOND) == []
    assert len(await reserve(driver, limit=9, rate=THREE_A_MINUTE, now=back + MINUTE)) == 3


async def test_a_clock_that_is_set_back_stops_an_enqueue_rate_for_one_window(driver: Driver) -> None:
    """W13: the same for enqueues; the error says how long to wait."""
    await limit(driver, enqueue_rate=THREE_A_MINUTE)
    assert await accepted(driver, 3, now=START) == 3
    back = START - 2 * HOUR

    with pytest.raises(RateLimited) as caught:
        await driver.enqueue(new_jobs(1), now=back)
    assert caught.value.retry_after == MINUTE
    with pytest.raises(RateLimited) as caught:
        await driver.enqueue(new_jobs(1), now=back + SECOND)
    assert caught.value.retry_after == MINUTE - SECOND
    assert await accepted(driver, 3, now=back + MINUTE) == 3


async def test_a_raised_rate_gives_more_at_once_and_a_lowered_one_remembers(driver: Driver) -> None:
    """W05 W06: what was spent stays spent."""
    await limit(driver, execute_rate=RateLimit(2, MINUTE))
    await driver.enqueue(new_jobs(9), now=START)
    assert len(await reserve(driver, limit=9)) == 2

    await limit(driver, execute_rate=RateLimit(4, MINUTE))
    assert len(await reserve(driver, limit=9)) == 2
    await limit(driver, execute_rate=RateLimit(1, MINUTE))

    assert await reserve(driver, now=START + MINUTE - MICROSECOND, limit=9) == []


async def test_a_rate_that_is_taken_away_limits_nothing(driver: Driver) -> None:
    """W08: from the next call on."""
    await limit(driver, enqueue_rate=THREE_A_MINUTE, execute_rate=THREE_A_MINUTE)
    await limit(driver, enqueue_rate=None, execute_rate=None)

    assert await accepted(driver, 7) == 7
    assert len(await reserve(driver, limit=9)) == 7


async def test_every_handle_spends_the_same_budget(driver: Driver) -> None:
    """W15: the budget is the store's, not the handle's."""
    await limit(driver, enqueue_rate=THREE_A_MINUTE, execute_rate=RateLimit(2, MINUTE))
    rate = RateLimit(1, MINUTE)

    async with driver.another() as second:
        assert await accepted(second, 2) == 2
        assert len(await reserve(second, rate=rate)) == 1
    assert await accepted(driver, 2) == 1
    assert await reserve(driver, rate=rate) == [], "its own worker's budget is spent"
    assert len(await reserve(driver, limit=9)) == 1


async def test_spent_budgets_survive_a_restart(driver: Driver) -> None:
    """W15: closed, and opened again by a new handle."""
    requires(driver, "durable")
    await limit(driver, enqueue_rate=THREE_A_MINUTE, execute_rate=RateLimit(2, MINUTE))
    await driver.enqueue(new_jobs(3), now=START)
    await reserve(driver, limit=9, lease_for=HOUR)
    again = driver.another()
    await driver.close()

    async with again:
        assert await accepted(again, 1, now=START + SECOND) == 0
        assert await reserve(again, now=START + SECOND, limit=9) == []
        assert await accepted(again, 4, now=START + MINUTE) == 3
        assert len(await reserve(again, now=START + MINUTE, limit=9)) == 2


async def test_a_finished_job_gives_nothing_back(driver: Driver) -> None:
    """W11: a rate counts starts, max_running counts what runs."""
    await limit(driver, execute_rate=RateLimit(1, MINUTE))
    await driver.enqueue(new_jobs(2), now=START)
    job = await reserve_one(driver)
    await settle_one(driver, Ack(job.lease))

    assert await reserve(driver) == []


# ------------------------------------------------------------------ looking


async def test_a_spent_execute_rate_says_when_it_has_room_again(driver: Driver) -> None:
    """W14: the instant is exact, and gone when it has come."""
    await limit(driver, execute_rate=RateLimit(2, MINUTE))
    await driver.enqueue(new_jobs(4), now=START)
    assert await throttled_until(driver) is None

    await reserve_one(driver, now=START)
    assert await throttled_until(driver) is None
    await reserve_one(driver, now=START + SECOND)

    assert await throttled_until(driver, now=START + SECOND) == START + MINUTE
    assert await throttled_until(driver, now=START + MINUTE - MICROSECOND) == START + MINUTE
    assert await throttled_until(driver, now=START + MINUTE) is None


async def throttled_until(driver: Driver, *, now: datetime = START) -> datetime | None:
    return {info.queue: info.throttled_until for info in await driver.queues(now=now)}[QUEUE]
