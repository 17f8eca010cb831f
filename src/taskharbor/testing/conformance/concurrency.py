"""B: concurrent claims, on one handle and on two. In any order, no job has two holders."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.model.job import JobRecord
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    LEASE,
    QUEUE,
    START,
    claim,
    enqueue,
    enqueue_one,
    get_one,
    new_job,
    new_jobs,
    reserve,
    running,
)

END = START + LEASE
HANDLES = pytest.mark.parametrize("handles", [1, 2])


@asynccontextmanager
async def turns(driver: Driver, handles: int, count: int) -> AsyncIterator[list[Driver]]:
    """`count` turns spread over so many handles on one store."""
    others = [await driver.another().open() for _ in range(handles - 1)]
    yield ([driver, *others] * count)[:count]
    for other in others:
        await other.close()


def ids_of(claims: Iterable[Iterable[JobRecord]]) -> list[str]:
    return [job.id for jobs in claims for job in jobs]


@HANDLES
async def test_one_job_has_one_winner(driver: Driver, handles: int) -> None:
    """B09 R000-41: thirty-two claims at once for a single job."""
    answer = await enqueue_one(driver)

    async with turns(driver, handles, 32) as drivers:
        claims = await asyncio.gather(*(reserve(each, worker_id=f"w{n}") for n, each in enumerate(drivers)))
    record = await get_one(driver, answer.id)

    assert ids_of(claims) == [answer.id]
    assert (record.starts, record.version) == (1, 2)


@HANDLES
async def test_many_claims_share_out_many_jobs(driver: Driver, handles: int) -> None:
    """B19: a hundred jobs for sixteen claims of ten: none twice, none lost, every lease works."""
    ids = await enqueue(driver, *new_jobs(100))

    async with turns(driver, handles, 16) as drivers:
        claims = await asyncio.gather(*(reserve(each, limit=10) for each in drivers))
    taken = [job for jobs in claims for job in jobs]
    answers = await driver.settle([Ack(job.lease) for job in taken], now=START)

    assert sorted(ids_of(claims)) == sorted(ids)
    assert not [answer for answer in answers if isinstance(answer, Exception)]


@HANDLES
async def test_an_expired_job_has_one_next_holder(driver: Driver, handles: int) -> None:
    """G01 G17 R000-41 R002-13: thirty-two claims and sweeps at once: one stall, one winner."""
    job = await running(driver)

    async with turns(driver, handles, 16) as drivers:
        sweeps = asyncio.gather(*(each.reclaim(now=END) for each in drivers))
        claims = await asyncio.gather(*(reserve(each, now=END) for each in drivers))
        await sweeps
    # All claims may have come by while a sweep had the job in its hands: then the next one gets it.
    winners = ids_of(claims) or [won.id for won in await reserve(driver, now=END)]
    record = await get_one(driver, job.id, now=END)

    assert winners == [job.id]
    assert (record.stalls, record.starts) == (1, 2)


@HANDLES
async def test_exchanges_side_by_side_never_share_a_job(driver: Driver, handles: int) -> None:
    """B25: eight holders give theirs back and ask for the next, all at once."""
    ids = await enqueue(driver, *new_jobs(16))
    held = await reserve(driver, limit=8)

    async with turns(driver, handles, 8) as drivers:
        answers = await asyncio.gather(
            *(
                each.exchange([Ack(job.lease)], claim(), now=START)
                for each, job in zip(drivers, held, strict=True)
            )
        )

    assert sorted(ids_of(answer.claimed for answer in answers)) == sorted(ids[8:])


@HANDLES
async def test_claims_side_by_side_never_pass_the_limit(driver: Driver, handles: int) -> None:
    """B19 R002-19: sixteen claims for three places."""
    await enqueue(driver, *new_jobs(20))
    await driver.configure_queue(QueueSettings(queue=QUEUE, max_running=3), now=START)

    async with turns(driver, handles, 16) as drivers:
        claims = await asyncio.gather(*(reserve(each, limit=2) for each in drivers))

    assert len(ids_of(claims)) == 3
    assert (await driver.count(now=START))[QUEUE].running == 3


@HANDLES
async def test_a_cancel_and_a_claim_at_once_agree(driver: Driver, handles: int) -> None:
    """B08: the job is cancelled and never handed out, or handed out and asked to stop: not both."""
    for _ in range(8):
        answer = await enqueue_one(driver)
        async with turns(driver, handles, 2) as drivers:
            before, [cancelled], after = await asyncio.gather(
                reserve(drivers[0]), drivers[-1].cancel([answer.id], now=START), reserve(drivers[0])
            )
        taken = ids_of([before, after])
        record = await get_one(driver, answer.id)

        assert Counter(taken) == ({answer.id: 1} if cancelled.result == "requested" else {})
        assert record.state is (JobState.RUNNING if taken else JobState.CANCELLED)
        assert record.cancel_requested == bool(taken)


@HANDLES
async def test_a_job_enqueued_during_claims_is_not_lost(driver: Driver, handles: int) -> None:
    """B10: what one claim missed the next one finds."""
    jobs = [new_job(priority=place) for place in range(12)]

    async with turns(driver, handles, 12) as drivers:
        claims = asyncio.gather(*(reserve(each) for each in drivers))
        await asyncio.gather(
            *(each.enqueue([job], now=START) for each, job in zip(drivers, jobs, strict=True))
        )
        early = ids_of(await claims)
        late = [job.id for job in await reserve(driver, limit=20)]

    assert sorted(early + late) == sorted(job.id for job in jobs)
