"""max_running and pause: how many leases may be out at once, per queue and for the whole harbor."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Extended
from taskharbor.errors import InvalidArgument, LeaseLost
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings
from taskharbor.model.settlement import Ack
from taskharbor.testing.conformance.kit import (
    ENDS,
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    OTHER_QUEUE,
    OTHER_WORKER,
    QUEUE,
    START,
    claim,
    enqueue_one,
    extend_one,
    get_one,
    new_jobs,
    reserve,
    reserve_one,
    running,
    settle_one,
    unchanged,
)

BOTH_QUEUES = (QUEUE, OTHER_QUEUE)


async def limit(driver: Driver, queue: str = QUEUE, **settings: Any) -> None:
    await driver.configure_queue(QueueSettings(queue=queue, **settings), now=START)


async def two_queues(driver: Driver, each: int = 5) -> None:
    """Some waiting jobs in both queues of the kit."""
    await driver.enqueue([*new_jobs(each), *new_jobs(each, queue=OTHER_QUEUE)], now=START)


async def taken(driver: Driver, **fields: Any) -> list[str]:
    """The queues of the jobs that a claim of up to 20 gets."""
    asked: dict[str, Any] = {"limit": 20, "queues": BOTH_QUEUES} | fields
    return [job.queue for job in await reserve(driver, **asked)]


async def test_a_limit_of_one_lets_one_job_out(driver: Driver) -> None:
    """W01: however often and however many are asked for."""
    await limit(driver, max_running=1)
    await driver.enqueue(new_jobs(2), now=START)

    assert len(await reserve(driver, limit=10)) == 1
    assert await reserve(driver, limit=10, worker_id=OTHER_WORKER) == []


async def test_one_claim_is_filled_up_to_the_limit(driver: Driver) -> None:
    """W01: what is out already counts."""
    await limit(driver, max_running=3)
    await driver.enqueue(new_jobs(9), now=START)

    assert [len(await reserve(driver, limit=2)) for _ in range(3)] == [2, 1, 0]


async def test_a_lease_stops_counting_at_the_instant_it_expires(driver: Driver) -> None:
    """W02: not a microsecond earlier."""
    await limit(driver, max_running=1)
    await driver.enqueue(new_jobs(2), now=START)
    await reserve_one(driver)

    assert await reserve(driver, now=START + LEASE - MICROSECOND) == []
    assert len(await reserve(driver, now=START + LEASE, limit=10)) == 1


@pytest.mark.parametrize("end", ENDS)
async def test_every_settlement_frees_its_place(driver: Driver, end: str) -> None:
    """W03: whatever became of the job."""
    await limit(driver, max_running=1)
    await driver.enqueue(new_jobs(2), now=START)
    job = await reserve_one(driver)

    await settle_one(driver, ENDS[end](job.lease))

    assert len(await reserve(driver, limit=10)) == 1


async def test_reclaim_frees_the_place(driver: Driver) -> None:
    """W03: by a sweeper as well."""
    await limit(driver, max_running=1)
    await driver.enqueue(new_jobs(2), now=START)
    await reserve_one(driver)

    await driver.reclaim(now=START + LEASE)

    assert len(await reserve(driver, now=START + LEASE, limit=10)) == 1


async def test_expiry_frees_a_place_that_nobody_swept(driver: Driver) -> None:
    """W04 R002-17: the expired job lies in a queue that this claim does not look at."""
    await limit(driver, EVERY_QUEUE, max_running=1)
    await two_queues(driver, 1)
    await reserve_one(driver)

    assert await taken(driver, queues=(OTHER_QUEUE,), now=START + LEASE - MICROSECOND) == []
    assert await taken(driver, queues=(OTHER_QUEUE,), now=START + LEASE) == [OTHER_QUEUE]


async def test_expired_leases_beyond_what_one_claim_sweeps_do_not_count_either(driver: Driver) -> None:
    """W02 W04: a claim returns a hundred of them; the hundred and first has ended all the same."""
    await driver.enqueue(new_jobs(101), now=START)
    assert len(await reserve(driver, limit=101)) == 101
    await limit(driver, max_running=1)

    assert await reserve(driver, now=START + LEASE - MICROSECOND, limit=10) == []
    assert len(await reserve(driver, now=START + LEASE, limit=10)) == 1


async def test_a_lowered_limit_leaves_running_jobs_alone(driver: Driver) -> None:
    """W05 R002-20: they extend and settle; new ones wait until there is room below it."""
    await driver.enqueue(new_jobs(5), now=START)
    jobs = await reserve(driver, limit=3)

    await limit(driver, max_running=2)

    assert await reserve(driver, limit=10) == []
    await extend_one(driver, jobs[0].lease, HOUR)
    await settle_one(driver, Ack(jobs[0].lease))
    assert await reserve(driver, limit=10) == [], "two still run"
    await settle_one(driver, Ack(jobs[1].lease))
    assert len(await reserve(driver, limit=10)) == 1


async def test_a_raised_limit_holds_from_the_next_claim_on(driver: Driver) -> None:
    """W06: at run time."""
    await limit(driver, max_running=1)
    await driver.enqueue(new_jobs(5), now=START)
    await reserve(driver, limit=10)

    await limit(driver, max_running=4)

    assert len(await reserve(driver, limit=10)) == 3


@pytest.mark.parametrize("queue", [QUEUE, EVERY_QUEUE])
async def test_a_limit_of_zero_hands_out_nothing(driver: Driver, queue: str) -> None:
    """W07: and what runs may end."""
    job = await running(driver)
    await driver.enqueue(new_jobs(2), now=START)

    await limit(driver, queue, max_running=0)

    assert await reserve(driver, limit=10) == []
    await settle_one(driver, Ack(job.lease))
    assert await reserve(driver, limit=10) == []


async def test_without_a_limit_everything_may_run(driver: Driver) -> None:
    """W08: never set, or taken away."""
    await driver.enqueue(new_jobs(50), now=START)
    await limit(driver, max_running=1)
    assert len(await reserve(driver, limit=100)) == 1

    await limit(driver, max_running=None)

    assert len(await reserve(driver, limit=100)) == 49


@pytest.mark.parametrize(
    ("own", "harbor", "expected"),
    [
        (2, 3, [QUEUE, QUEUE, OTHER_QUEUE]),
        (3, 2, [QUEUE, QUEUE]),
        (0, 2, [OTHER_QUEUE, OTHER_QUEUE]),
        (4, 0, []),
    ],
)
async def test_the_limits_of_queue_and_harbor_both_hold(
    driver: Driver, own: int, harbor: int, expected: list[str]
) -> None:
    """W09: the tighter one decides, claim by claim and queue by queue."""
    await limit(driver, max_running=own)
    await limit(driver, EVERY_QUEUE, max_running=harbor)
    await two_queues(driver)

    assert await taken(driver) == expected
    assert await taken(driver) == []


async def test_the_harbor_counts_what_runs_in_queues_it_is_not_asked_about(driver: Driver) -> None:
    """W09: across queues."""
    await limit(driver, EVERY_QUEUE, max_running=3)
    await two_queues(driver)
    assert len(await taken(driver, queues=(OTHER_QUEUE,), limit=2)) == 2

    assert len(await taken(driver, queues=(QUEUE,))) == 1


async def test_an_expired_lease_cannot_come_back_over_the_limit(driver: Driver) -> None:
    """W10 AM10: its place was given away."""
    await limit(driver, max_running=1)
    await driver.enqueue(new_jobs(2), now=START)
    first = await reserve_one(driver)
    then = START + LEASE
    second = await reserve_one(driver, now=then, worker_id=OTHER_WORKER, lease_for=HOUR)

    [answer] = await driver.extend_leases([first.lease], HOUR, now=then)

    assert isinstance(answer, LeaseLost)
    assert isinstance(await extend_one(driver, second.lease, HOUR, now=then), Extended)
    assert await reserve(driver, now=then + MINUTE, limit=10) == []


async def test_a_full_queue_never_delays_another_one(driver: Driver) -> None:
    """W14: it is passed over inside the same claim."""
    await limit(driver, max_running=0)
    await two_queues(driver, 3)

    assert await taken(driver) == [OTHER_QUEUE] * 3


async def test_a_gate_that_says_no_changes_nothing(driver: Driver) -> None:
    """W14 C18: no counter, no place, no version."""
    await limit(driver, max_running=0)
    answer = await enqueue_one(driver)

    async with unchanged(driver, answer.id):
        for _ in range(3):
            assert await reserve(driver, limit=10) == []


async def test_an_exchange_may_use_the_place_it_frees(driver: Driver) -> None:
    """W03 B22: settle comes first, at the same instant."""
    await limit(driver, max_running=1)
    await driver.enqueue(new_jobs(2), now=START)
    job = await reserve_one(driver)

    answers = await driver.exchange([Ack(job.lease)], claim(limit=10), now=START)

    assert len(answers.claimed) == 1


async def test_every_handle_obeys_the_same_limit(driver: Driver) -> None:
    """W09: the limit is the store's, not the handle's."""
    await limit(driver, max_running=2)
    await driver.enqueue(new_jobs(5), now=START)

    async with driver.another() as second:
        assert len(await reserve(second, limit=10)) == 2
    assert await reserve(driver, limit=10) == []


@pytest.mark.parametrize("value", [-1, 1.5, True])
async def test_a_limit_that_is_no_count_is_refused(driver: Driver, value: Any) -> None:
    """R002-18 N15: and the stored one stays."""
    await limit(driver, max_running=1)

    with pytest.raises(InvalidArgument):
        await limit(driver, max_running=value)

    await driver.enqueue(new_jobs(5), now=START)
    assert len(await reserve(driver, limit=10)) == 1


# ------------------------------------------------------------------ pause


async def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(driver: Driver) -> None:
    """R10 B26: jobs still come in, and what runs may end."""
    job = await running(driver)
    await limit(driver, paused=True)
    waiting = await enqueue_one(driver)

    async with unchanged(driver, waiting.id):
        assert await reserve(driver, limit=10) == []
    await extend_one(driver, job.lease, HOUR)
    await settle_one(driver, Ack(job.lease))
    await limit(driver, paused=False)

    assert [again.id for again in await reserve(driver, limit=10)] == [waiting.id]


async def test_a_paused_queue_never_delays_another_one(driver: Driver) -> None:
    """R10 W14: first in the list, and passed over."""
    await limit(driver, paused=True)
    await two_queues(driver, 3)

    assert await taken(driver) == [OTHER_QUEUE] * 3


async def test_a_paused_harbor_hands_out_nothing_at_all(driver: Driver) -> None:
    """R10: whatever the queues themselves say."""
    await limit(driver, EVERY_QUEUE, paused=True)
    await limit(driver, paused=False)
    await two_queues(driver, 1)

    assert await taken(driver) == []
    await limit(driver, EVERY_QUEUE, paused=False)
    assert await taken(driver) == [QUEUE, OTHER_QUEUE]


async def test_an_expired_job_of_a_paused_queue_waits_for_the_resume(driver: Driver) -> None:
    """G01 R10: reclaimed or not, it is not handed out."""
    job = await running(driver)
    await limit(driver, paused=True)
    then = START + LEASE

    assert await reserve(driver, now=then, limit=10) == []
    await limit(driver, paused=False)
    assert [again.id for again in await reserve(driver, now=then)] == [job.id]
    assert (await get_one(driver, job.id, now=then)).stalls == 1


async def test_an_extended_lease_counts_until_its_new_end(driver: Driver) -> None:
    """W03: a place is not free because the first end of a lease is over."""
    await limit(driver, max_running=1)
    job = await running(driver)
    await driver.extend_leases([job.lease], 3 * LEASE, now=START)
    await enqueue_one(driver)

    assert await reserve(driver, now=START + 2 * LEASE) == []
