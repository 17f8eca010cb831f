"""D: the good end."""

from __future__ import annotations

import msgspec
import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Settled
from taskharbor.errors import InvalidArgument, JobNotInflight, LeaseExpired, LeaseMismatch
from taskharbor.model.job import Lease
from taskharbor.model.settlement import Ack, Fail, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    LEASE,
    MICROSECOND,
    OTHER_QUEUE,
    OTHER_WORKER,
    QUEUE,
    SECOND,
    START,
    UNKNOWN_ID,
    WORKER,
    WRONG_TOKEN,
    enqueue_one,
    get_one,
    in_state,
    new_jobs,
    refused,
    reserve,
    reserve_one,
    running,
    settle_one,
    state_of,
    unchanged,
)

END = START + LEASE


async def test_an_acknowledged_job_is_completed(driver: Driver) -> None:
    """D01: with its result, its end, no lease, and the token that ended it; all else as it was."""
    job = await running(driver, payload=b"work", priority=3)
    before = await get_one(driver, job.id)

    answer = await settle_one(driver, Ack(job.lease, b"42"), now=START + SECOND)
    after = await get_one(driver, job.id, now=START + SECOND)

    assert answer == Settled(job.id, JobState.COMPLETED, START + SECOND, job.version + 1)
    assert after == msgspec.structs.replace(
        before,
        state=JobState.COMPLETED,
        result=b"42",
        finished_at=START + SECOND,
        updated_at=START + SECOND,
        version=before.version + 1,
        lease_expires_at=None,
        worker_id=None,
        settled_token=job.token,
    )


async def test_a_job_can_be_acknowledged_until_its_lease_ends(driver: Driver) -> None:
    """D02: one microsecond before its end yes, at its end no."""
    in_time, late = await running(driver), await running(driver)

    answer = await refused(driver, Ack(late.lease), now=END)
    await settle_one(driver, Ack(in_time.lease), now=END - MICROSECOND)

    assert isinstance(answer, LeaseExpired)


async def test_another_token_acknowledges_nothing(driver: Driver) -> None:
    """D03: LeaseMismatch, and the holder can still do it."""
    job = await running(driver)

    async with unchanged(driver, job.id):
        answer = await refused(driver, Ack(Lease(job.id, WRONG_TOKEN), b"stolen"))

    assert isinstance(answer, LeaseMismatch)
    await settle_one(driver, Ack(job.lease))


async def test_the_token_of_another_job_acknowledges_nothing(driver: Driver) -> None:
    """D03: a valid token, but not of this job."""
    job, other = await running(driver), await running(driver, worker_id=OTHER_WORKER)
    assert other.token is not None

    async with unchanged(driver, job.id, other.id):
        answer = await refused(driver, Ack(Lease(job.id, other.token)))

    assert isinstance(answer, LeaseMismatch)


async def test_the_name_of_another_worker_acknowledges_nothing(driver: Driver) -> None:
    """D03: a token implies its holder; a lease that names another one is not it."""
    job = await running(driver)
    assert job.token is not None

    async with unchanged(driver, job.id):
        answer = await refused(driver, Ack(Lease(job.id, job.token, worker_id=OTHER_WORKER)))

    assert isinstance(answer, LeaseMismatch)
    await settle_one(driver, Ack(Lease(job.id, job.token, worker_id=WORKER)))


@pytest.mark.parametrize("foreign_at", [0, 1, 2])
async def test_a_lease_in_a_foreign_name_is_refused_beside_good_ones(driver: Driver, foreign_at: int) -> None:
    """D03: the jobs of one claim share a token; each lease of a batch is still judged by its own name."""
    await driver.enqueue(new_jobs(3), now=START)
    jobs = await reserve(driver, limit=3)
    leases = [job.lease for job in jobs]
    leases[foreign_at] = msgspec.structs.replace(leases[foreign_at], worker_id=OTHER_WORKER)

    extended = await driver.extend_leases(leases, LEASE, now=START)
    settled = await driver.settle([Ack(lease) for lease in leases], now=START)

    for answers in (extended, settled):
        assert [isinstance(answer, LeaseMismatch) for answer in answers] == [
            place == foreign_at for place in range(3)
        ]
    states = [(await get_one(driver, job.id)).state for job in jobs]
    assert states.count(JobState.COMPLETED) == 2
    assert states[foreign_at] is JobState.RUNNING


async def test_acks_of_several_claims_go_in_one_call(driver: Driver) -> None:
    """D03: each is judged by its own token; that of another claim of the same worker ends nothing."""
    await driver.enqueue(new_jobs(4), now=START)
    first, second = await reserve(driver, limit=2), await reserve(driver, limit=2)
    mistaken = msgspec.structs.replace(second[1].lease, token=first[0].token)
    leases = [first[0].lease, second[0].lease, mistaken, first[1].lease]

    extended = await driver.extend_leases(leases, LEASE, now=START)
    settled = await driver.settle([Ack(lease) for lease in leases], now=START)

    for answers in (extended, settled):
        assert [isinstance(answer, LeaseMismatch) for answer in answers] == [False, False, True, False]
    states = [await state_of(driver, lease.job_id) for lease in leases]
    assert states == [JobState.COMPLETED, JobState.COMPLETED, JobState.RUNNING, JobState.COMPLETED]


async def test_leases_of_several_workers_go_in_one_call(driver: Driver) -> None:
    """D03: each is judged by its own token and name; those of the lease beside it end nothing."""
    await driver.enqueue(new_jobs(3), now=START)
    first, second = await reserve(driver, limit=2, worker_id=WORKER)
    third = await reserve_one(driver, worker_id=OTHER_WORKER)
    mistaken = msgspec.structs.replace(second.lease, token=third.token, worker_id=OTHER_WORKER)
    leases = [first.lease, mistaken, third.lease]

    extended = await driver.extend_leases(leases, LEASE, now=START)
    settled = await driver.settle([Ack(lease) for lease in leases], now=START)

    for answers in (extended, settled):
        assert [isinstance(answer, LeaseMismatch) for answer in answers] == [False, True, False]
    states = [await state_of(driver, job.id) for job in (first, second, third)]
    assert states == [JobState.COMPLETED, JobState.RUNNING, JobState.COMPLETED]


async def test_jobs_of_several_claims_and_queues_that_end_together_keep_what_is_their_own(
    driver: Driver,
) -> None:
    """D01 D03: queue, token and start, whatever else ends in the same call."""
    await driver.enqueue([*new_jobs(2), *new_jobs(2, queue=OTHER_QUEUE)], now=START)
    jobs = await reserve(driver, queues=(QUEUE, OTHER_QUEUE), limit=3, now=START)
    jobs += await reserve(driver, queues=(QUEUE, OTHER_QUEUE), limit=3, now=START + SECOND)

    await driver.settle([Ack(job.lease) for job in jobs], now=START + 2 * SECOND)
    after = [await get_one(driver, job.id, now=START + 2 * SECOND) for job in jobs]

    assert [job.state for job in after] == [JobState.COMPLETED] * 4
    assert [(job.queue, job.settled_token, job.started_at) for job in after] == [
        (job.queue, job.token, job.started_at) for job in jobs
    ]
    assert {job.finished_at for job in after} == {START + 2 * SECOND}


async def test_jobs_with_and_without_a_result_end_in_one_call(driver: Driver) -> None:
    """D01: each with its own; an empty result is one too."""
    await driver.enqueue(new_jobs(4), now=START)
    jobs = await reserve(driver, limit=4)
    results = [b"one", None, b"", None]

    await driver.settle(
        [Ack(job.lease, result) for job, result in zip(jobs, results, strict=True)], now=START
    )

    assert [(await get_one(driver, job.id)).result for job in jobs] == results


async def test_a_late_worker_does_not_harm_the_next_one(driver: Driver) -> None:
    """D04: refused after the job was handed on, and the new holder ends it."""
    old = await running(driver)
    new = await reserve_one(driver, now=END, worker_id=OTHER_WORKER)

    async with unchanged(driver, old.id, now=END):
        answer = await refused(driver, Ack(old.lease, b"old"), now=END)
    await settle_one(driver, Ack(new.lease, b"new"), now=END)

    assert isinstance(answer, LeaseMismatch)
    assert (await get_one(driver, old.id, now=END)).result == b"new"


async def test_a_worker_cannot_be_mistaken_for_its_own_earlier_attempt(driver: Driver) -> None:
    """D05: the same worker takes the job again after a stall; its first attempt then ends nothing."""
    first = await running(driver, worker_id=WORKER)
    second = await reserve_one(driver, now=END, worker_id=WORKER)

    async with unchanged(driver, first.id, now=END):
        answer = await refused(driver, Ack(first.lease, b"first"), now=END)

    assert (second.id, second.worker_id) == (first.id, first.worker_id)
    assert isinstance(answer, LeaseMismatch)
    await settle_one(driver, Ack(second.lease), now=END)


async def test_a_swept_job_cannot_be_acknowledged(driver: Driver) -> None:
    """D06: JobNotInflight while it waits for its next holder."""
    job = await running(driver)
    await driver.reclaim(now=END)

    async with unchanged(driver, job.id, now=END):
        answer = await refused(driver, Ack(job.lease), now=END)

    assert isinstance(answer, JobNotInflight)


async def test_a_repeat_after_a_lost_reply_differs_from_a_loss(driver: Driver) -> None:
    """D07 F06 T11: JobNotInflight, nothing counted twice, and settled_token is the caller's."""
    for end in (Ack, Fail, Retry):
        job = await running(driver, queue=f"kit-{end.__name__}")
        await settle_one(driver, end(job.lease))

        async with unchanged(driver, job.id):
            answer = await refused(driver, end(job.lease), now=START + SECOND)

        record = await get_one(driver, job.id)
        assert isinstance(answer, JobNotInflight)
        assert record.settled_token == job.token
        assert record.attempts == (0 if end is Ack else 1)


async def test_the_last_token_is_forgotten_when_the_job_moves_on(driver: Driver) -> None:
    """D07: cleared by the next claim, by a reclaim and by a requeue, so that an old success is never read."""
    job = await running(driver)
    await settle_one(driver, Retry(job.lease))
    kept = (await get_one(driver, job.id)).settled_token

    again = await reserve_one(driver)
    by_claim = (await get_one(driver, job.id)).settled_token
    await driver.reclaim(now=END)
    by_reclaim = (await get_one(driver, job.id)).settled_token
    last = await reserve_one(driver, now=END)
    await settle_one(driver, Ack(last.lease), now=END)
    await driver.requeue([job.id], now=END)
    by_requeue = (await get_one(driver, job.id)).settled_token

    assert (kept, again.settled_token) == (job.token, None)
    assert (by_claim, by_reclaim, by_requeue) == (None, None, None)


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED])
async def test_another_token_finds_an_ended_job_not_running(driver: Driver, state: JobState) -> None:
    """D08: JobNotInflight comes before the token is looked at."""
    over = await in_state(driver, state)

    async with unchanged(driver, over.id):
        answer = await refused(driver, Ack(Lease(over.id, WRONG_TOKEN)))

    assert isinstance(answer, JobNotInflight)


@pytest.mark.parametrize("state", [JobState.READY, JobState.SCHEDULED, JobState.BLOCKED])
async def test_a_waiting_job_cannot_be_acknowledged(driver: Driver, state: JobState) -> None:
    """D09 R002-4: nothing goes from waiting to completed."""
    waiting = await in_state(driver, state)

    async with unchanged(driver, waiting.id):
        answer = await refused(driver, Ack(Lease(waiting.id, WRONG_TOKEN)))

    assert isinstance(answer, JobNotInflight)


async def test_an_unknown_job_cannot_be_acknowledged(driver: Driver) -> None:
    """D10: JobNotInflight, and no record appears."""
    async with unchanged(driver, UNKNOWN_ID):
        answer = await refused(driver, Ack(Lease(UNKNOWN_ID, WRONG_TOKEN)))

    assert isinstance(answer, JobNotInflight)


async def test_a_result_may_be_as_large_as_the_limit_and_no_larger(driver: Driver) -> None:
    """D11: one byte more refuses the whole call, and the job can still be settled."""
    job = await running(driver)
    largest = b"r" * driver.max_payload

    async with unchanged(driver, job.id):
        with pytest.raises(InvalidArgument):
            await driver.settle([Ack(job.lease, largest + b"r")], now=START)
    await settle_one(driver, Ack(job.lease, largest))

    assert (await get_one(driver, job.id)).result == largest


@pytest.mark.parametrize("result", [None, b""], ids=["none", "empty"])
async def test_no_result_and_an_empty_one_are_two_things(driver: Driver, result: bytes | None) -> None:
    """D01: each comes back as it was given."""
    job = await running(driver)

    await settle_one(driver, Ack(job.lease, result))

    assert (await get_one(driver, job.id)).result == result


async def test_settlements_are_answered_one_by_one(driver: Driver) -> None:
    """D12: in the order given, each for itself; a lease given twice counts once."""
    await driver.enqueue(new_jobs(3), now=START)
    done, kept = await reserve(driver, limit=2)
    short = await reserve_one(driver, lease_for=SECOND)
    now = START + SECOND

    async with unchanged(driver, short.id, kept.id, now=now):
        pass
    answers = await driver.settle(
        [
            Ack(short.lease),
            Ack(done.lease, b"first"),
            Ack(done.lease, b"second"),
            Ack(Lease(UNKNOWN_ID, WRONG_TOKEN)),
            Ack(Lease(kept.id, WRONG_TOKEN)),
            Retry(kept.lease, reason="again"),
        ],
        now=now,
    )

    assert [type(answer) for answer in answers] == [
        LeaseExpired,
        Settled,
        JobNotInflight,
        JobNotInflight,
        LeaseMismatch,
        Settled,
    ]
    assert (await get_one(driver, done.id, now=now)).result == b"first"
    assert (await get_one(driver, kept.id, now=now)).last_error == "again"


async def test_no_settlements_are_no_work(driver: Driver) -> None:
    """D12: an empty call answers an empty list."""
    assert await driver.settle([], now=START) == []


async def test_an_ack_touches_no_other_job(driver: Driver) -> None:
    """D13: not the neighbour of the same claim, not the next in line, not the one of another queue."""
    await driver.enqueue(new_jobs(2), now=START)
    first, second = await reserve(driver, limit=2)
    waiting = await enqueue_one(driver)
    elsewhere = await running(driver, queue="kit-elsewhere")
    others = [second.id, waiting.id, elsewhere.id]
    before = await driver.get(others, now=START)

    await settle_one(driver, Ack(first.lease))

    assert await driver.get(others, now=START) == before


async def test_the_one_job_form_acknowledges_or_raises(driver: Driver) -> None:
    """D01 D03: ack(id, token, now) is settle for one."""
    job = await running(driver)
    assert job.token is not None

    with pytest.raises(LeaseMismatch):
        await driver.ack(job.id, WRONG_TOKEN, START)
    answer = await driver.ack(job.id, job.token, START)
    with pytest.raises(JobNotInflight):
        await driver.ack(job.id, job.token, START)

    assert (answer.id, answer.state) == (job.id, JobState.COMPLETED)


@pytest.mark.parametrize("wrong", ["token", "worker_id"])
async def test_acks_of_several_claims_are_each_judged_by_their_own_lease(driver: Driver, wrong: str) -> None:
    """D04: one call, two leases; what is wrong with one says nothing of the other."""
    first = await running(driver)
    second = await running(driver, worker_id=OTHER_WORKER)
    stolen = msgspec.structs.replace(first.lease, **{wrong: getattr(second.lease, wrong)})

    of_first, of_second = await driver.settle([Ack(stolen), Ack(second.lease)], now=START)

    assert isinstance(of_first, LeaseMismatch)
    assert isinstance(of_second, Settled)
    assert await state_of(driver, first.id) is JobState.RUNNING
