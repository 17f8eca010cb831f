"""B: settle and reserve in one go."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Settled
from taskharbor.errors import InvalidArgument, JobNotInflight, LeaseExpired, LeaseMismatch
from taskharbor.model.job import Lease
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack, Fail, Release, Retry, Settlement
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MICROSECOND,
    OTHER_QUEUE,
    QUEUE,
    SECOND,
    START,
    UNKNOWN_ID,
    WRONG_TOKEN,
    claim,
    enqueue_one,
    get_one,
    new_jobs,
    reserve,
    running,
    state_of,
    unchanged,
)

END = START + LEASE


async def test_an_exchange_settles_and_then_reserves(driver: Driver) -> None:
    """B25: (exchange) both at the same `now`, the answers side by side."""
    job, waiting = await running(driver), await enqueue_one(driver)
    now = START + SECOND

    answers = await driver.exchange([Ack(job.lease, b"42")], claim(limit=5), now=now)

    assert answers.settled == [Settled(job.id, JobState.COMPLETED, now, job.version + 1)]
    assert [(entry.id, entry.lease_expires_at) for entry in answers.claimed] == [(waiting.id, now + LEASE)]
    assert answers.error is None
    assert (await get_one(driver, job.id)).result == b"42"
    assert answers.claimed[0].token != job.token


async def test_an_exchange_is_what_its_two_halves_are(driver: Driver) -> None:
    """B25: (exchange) the same records as settle followed by reserve, field by field."""
    together: list[dict[str, object]] = []
    apart: list[dict[str, object]] = []
    for queue, records in (("kit-together", together), ("kit-apart", apart)):
        await driver.enqueue(new_jobs(6, queue=queue, max_stalls=1), now=START)
        jobs = await reserve(driver, queues=(queue,), limit=4)
        ends: list[Settlement] = [
            Ack(jobs[0].lease),
            Retry(jobs[1].lease, SECOND, "why"),
            Fail(jobs[2].lease),
            Release(jobs[3].lease),
        ]
        wanted = claim(queues=(queue,), limit=10)
        if records is together:
            claimed = (await driver.exchange(ends, wanted, now=START)).claimed
        else:
            await driver.settle(ends, now=START)
            claimed = (await driver.reserve(wanted, now=START)).jobs
        assert claimed[0].id == jobs[3].id
        stored = await driver.get([job.id for job in [*jobs, *claimed]], now=START)
        records += [comparable(job) for job in stored]

    assert together == apart


def comparable(job: Any) -> dict[str, object]:
    """A record without what is different by nature."""
    apart = ("id", "seq", "queue", "token", "settled_token", "fence", "history")
    return {name: getattr(job, name) for name in job.__struct_fields__ if name not in apart}


async def test_what_an_exchange_frees_it_can_claim(driver: Driver) -> None:
    """B25: (exchange) the place under max_running, the key, and the very job that it hands back."""
    await driver.configure_queue(QueueSettings(queue=QUEUE, max_running=1), now=START)
    job = await running(driver, key=b"k")
    blocked = await enqueue_one(driver, key=b"k")

    first = await driver.exchange([Ack(job.lease)], claim(limit=5), now=START)
    [taken] = first.claimed
    second = await driver.exchange([Release(taken.lease)], claim(limit=5), now=START)

    assert taken.id == blocked.id
    assert [entry.id for entry in second.claimed] == [blocked.id]
    assert second.claimed[0].starts == 2


async def test_a_refused_settlement_does_not_stop_the_claim(driver: Driver) -> None:
    """B25: (exchange) lost leases come back beside the jobs that were claimed."""
    late, job = await running(driver, lease_for=SECOND, queue=OTHER_QUEUE), await running(driver)
    waiting = await enqueue_one(driver)

    answers = await driver.exchange(
        [Ack(late.lease), Ack(Lease(job.id, WRONG_TOKEN)), Ack(Lease(UNKNOWN_ID, WRONG_TOKEN))],
        claim(limit=5),
        now=START + SECOND,
    )

    assert [type(answer) for answer in answers.settled] == [LeaseExpired, LeaseMismatch, JobNotInflight]
    assert [entry.id for entry in answers.claimed] == [waiting.id]


async def test_an_exchange_without_settlements_only_reserves(driver: Driver) -> None:
    """B25: (exchange) and one that finds nothing only settles."""
    answer = await enqueue_one(driver)

    first = await driver.exchange([], claim(), now=START)
    second = await driver.exchange([Ack(first.claimed[0].lease)], claim(), now=START)

    assert (first.settled, [job.id for job in first.claimed]) == ([], [answer.id])
    assert (len(second.settled), second.claimed, second.error) == (1, [], None)


async def test_an_exchange_on_a_paused_queue_still_settles(driver: Driver) -> None:
    """B25: (exchange) a gate that says no is no error and takes nothing back."""
    job = await running(driver)
    await enqueue_one(driver)
    await driver.configure_queue(QueueSettings(queue=QUEUE, paused=True), now=START)

    answers = await driver.exchange([Ack(job.lease)], claim(limit=5), now=START)

    assert isinstance(answers.settled[0], Settled)
    assert (answers.claimed, answers.error) == ([], None)
    assert await state_of(driver, job.id) is JobState.COMPLETED


async def test_an_exchange_reclaims_and_promotes_like_a_claim(driver: Driver) -> None:
    """B25: (exchange) an expired and a due job come with it, at the exact instant."""
    holder = await running(driver, lease_for=HOUR)
    expired = await running(driver)
    due = await enqueue_one(driver, run_at=END)

    early = await driver.exchange([], claim(limit=5), now=END - MICROSECOND)
    answers = await driver.exchange([Ack(holder.lease)], claim(limit=5), now=END)

    assert early.claimed == []
    assert {job.id for job in answers.claimed} == {expired.id, due.id}


@pytest.mark.parametrize(
    ("fields", "delay"),
    [({"limit": 0}, None), ({"queues": ()}, None), ({"lease_for": timedelta(0)}, None), ({}, -SECOND)],
    ids=["limit", "queues", "lease", "delay of a settlement"],
)
async def test_an_exchange_checks_all_of_its_arguments_first(
    driver: Driver, fields: dict[str, Any], delay: timedelta | None
) -> None:
    """B25: (exchange) a bad claim settles nothing, and a bad settlement claims nothing."""
    job, waiting = await running(driver), await enqueue_one(driver)

    async with unchanged(driver, job.id, waiting.id):
        with pytest.raises(InvalidArgument):
            await driver.exchange([Release(job.lease, delay)], claim(**fields), now=START)
