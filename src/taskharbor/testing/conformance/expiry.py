"""G: leases that ran out, and what becomes of their jobs."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import msgspec
import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Reclaimed, ReclaimResult, given_up_in
from taskharbor.errors import InvalidArgument
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Fail, Retry, Stalled
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MICROSECOND,
    OTHER_QUEUE,
    OTHER_WORKER,
    QUEUE,
    SECOND,
    START,
    TYPE,
    Moment,
    claim,
    enqueue_one,
    extend_one,
    found_ids,
    get_one,
    new_jobs,
    requires,
    reserve,
    reserve_one,
    running,
    settle_one,
    snapshot,
    unchanged,
)
from taskharbor.testing.conformance.relatives import after, children, group, store, take

END = START + LEASE


async def sweep(driver: Driver, limit: int = 100, *, now: datetime = END) -> list[Reclaimed]:
    return await driver.reclaim(limit, now=now)


@pytest.mark.parametrize("late", [timedelta(0), MICROSECOND, HOUR], ids=str)
async def test_an_expired_job_can_be_reserved_from_its_end_on(driver: Driver, late: timedelta) -> None:
    """G01 G02 R000-21: by reserve alone, at the very instant."""
    job = await running(driver)

    early = await reserve(driver, now=END - MICROSECOND, worker_id=OTHER_WORKER)
    taken = await reserve_one(driver, now=END + late, worker_id=OTHER_WORKER)

    assert early == []
    assert (taken.id, taken.worker_id, taken.starts) == (job.id, OTHER_WORKER, 2)


async def test_a_job_with_heartbeats_is_never_reclaimed(driver: Driver) -> None:
    """G03: ten leases long, a beat every third of one, sweepers and claimers all the while."""
    job = await running(driver)
    lease, clock = job.lease, Moment()
    while clock.now() < START + 10 * LEASE:
        clock.advance(LEASE / 3)
        assert await sweep(driver, now=clock.now()) == []
        assert await reserve(driver, now=clock.now()) == []
        lease = (await extend_one(driver, lease, now=clock.now())).lease

    await settle_one(driver, Ack(lease), now=clock.now())

    record = await get_one(driver, job.id, now=clock.now())
    assert (record.starts, record.stalls) == (1, 0)


async def test_a_reclaimed_job_is_ready_with_one_stall_more(driver: Driver) -> None:
    """G04 G06 R001-11 R002-11: the whole record: attempts alone, run_at emptied, no lease."""
    job = await running(driver, run_at=START, max_attempts=1)
    before = await get_one(driver, job.id)

    answers = await sweep(driver)
    after = await get_one(driver, job.id, now=END)

    assert answers == [Reclaimed(job.id, QUEUE, TYPE, ReclaimResult.REQUEUED, 1, END, before.version + 1)]
    assert after == msgspec.structs.replace(
        before,
        state=JobState.READY,
        run_at=None,
        stalls=1,
        updated_at=END,
        version=before.version + 1,
        lease_expires_at=None,
        worker_id=None,
        history=after.history,
    )
    assert [(entry.outcome, entry.worker_id, entry.fence) for entry in after.history] == [
        ("stalled", before.worker_id, before.fence)
    ]


async def test_reserve_and_sweep_count_a_stall_alike(driver: Driver) -> None:
    """G05 R000-19: one stall each, and the same record afterwards but for the new lease."""
    swept, claimed = await running(driver, queue="kit-swept"), await running(driver, queue="kit-claimed")
    await sweep(driver, limit=1)
    by_sweep = await reserve_one(driver, queues=("kit-swept",), now=END)
    by_claim = await reserve_one(driver, queues=("kit-claimed",), now=END)

    assert (by_sweep.id, by_claim.id) == (swept.id, claimed.id)
    for name in ("stalls", "attempts", "starts", "run_at", "version", "last_error", "failed_at"):
        assert getattr(by_sweep, name) == getattr(by_claim, name), name


async def test_failures_and_stalls_are_counted_apart(driver: Driver) -> None:
    """G04: three of one and two of the other, mixed."""
    clock = Moment()
    job = await running(driver)
    for end in ("stall", "retry", "retry", "stall", "retry"):
        if end == "retry":
            await settle_one(driver, Retry(job.lease), now=clock.now())
        else:
            clock.advance(LEASE)
        job = await reserve_one(driver, now=clock.now())

    assert (job.attempts, job.stalls, job.starts) == (3, 2, 6)


async def test_a_reclaimed_job_keeps_its_place(driver: Driver) -> None:
    """G06 G07: same seq and priority; its place follows its creation, before what came later."""
    job = await running(driver, priority=1)
    younger = await enqueue_one(driver, priority=1, now=START + SECOND)
    urgent = await enqueue_one(driver, priority=2, now=START + SECOND)

    taken = await reserve(driver, limit=3, now=END)

    assert [entry.id for entry in taken] == [urgent.id, job.id, younger.id]
    assert (taken[1].seq, taken[1].priority) == (job.seq, 1)


async def test_every_stall_runs_again_at_once(driver: Driver) -> None:
    """G08: the fifth as soon as the first: no backoff is added by the store; zero max_stalls means no end."""
    await enqueue_one(driver, max_stalls=0)
    clock = Moment()
    for stalls in range(5):
        job = await reserve_one(driver, now=clock.now())
        assert (job.stalls, job.run_at) == (stalls, None)
        clock.advance(LEASE)


@pytest.mark.parametrize("max_stalls", [1, 2, 3])
async def test_the_last_allowed_expiry_fails_the_job(driver: Driver, max_stalls: int) -> None:
    """G09: the N-th stall of max_stalls = N, kind `stalled`, attempts untouched, by any call."""
    for way in ("sweep", "reserve"):
        clock = Moment()
        queue = f"kit-{way}"
        job = await running(driver, queue=queue, max_stalls=max_stalls)
        for _ in range(max_stalls - 1):
            job = await reserve_one(driver, queues=(queue,), now=clock.advance(LEASE))
        now = clock.advance(LEASE)
        if way == "sweep":
            assert [answer.result for answer in await sweep(driver, now=now)] == [ReclaimResult.FAILED]
        else:
            assert await reserve(driver, queues=(queue,), now=now) == []

        record = await get_one(driver, job.id, now=now)
        assert (record.state, record.failure_kind) == (JobState.FAILED, "stalled")
        assert (record.stalls, record.attempts, record.starts) == (max_stalls, 0, max_stalls)
        assert (record.failed_at, record.finished_at) == (now, now)
        assert record.last_error


async def test_a_job_that_stalled_to_death_reaches_the_fail_queue(driver: Driver) -> None:
    """G09: like any other failure, once, with its kind."""
    await driver.configure_queue(QueueSettings(queue=QUEUE, fail_queue=OTHER_QUEUE), now=START)
    job = await running(driver, max_stalls=1)

    await sweep(driver)
    await sweep(driver)
    [failure] = await reserve(driver, queues=(OTHER_QUEUE,), limit=10, now=END)

    body = msgspec.json.decode(failure.payload)
    assert (body["id"], body["failure_kind"], body["stalls"]) == (job.id, "stalled", 1)


@pytest.mark.parametrize("way", ["reserve", "exchange", "reclaim"])
async def test_a_job_that_is_given_up_is_reported_in_one_answer(driver: Driver, way: str) -> None:
    """G09: no attempt is left to be settled, so no other answer could report it."""
    await driver.enqueue([*new_jobs(2, max_stalls=1), *new_jobs(2, max_stalls=2)], now=START)
    first, second, *_ = await reserve(driver, limit=4)
    other = await driver.another().open()

    found = await given_up(driver, way)
    again = [*await given_up(driver, way), *await given_up(other, way)]
    await other.close()

    assert {job.id: job for job in found} == {
        job.id: Reclaimed(job.id, QUEUE, TYPE, ReclaimResult.FAILED, 1, END, job.version + 1)
        for job in (first, second)
    }
    assert len(found) == 2
    assert again == []


async def given_up(driver: Driver, way: str, now: datetime = END) -> tuple[Reclaimed, ...]:
    if way == "reserve":
        return (await driver.reserve(claim(), now=now)).given_up
    if way == "exchange":
        return (await driver.exchange([], claim(), now=now)).given_up
    return given_up_in(await driver.reclaim(now=now))


async def test_a_job_that_was_not_kept_is_reported_all_the_same(driver: Driver) -> None:
    """G09: without retention for failed jobs, this is the only word of it."""
    retention = Retention(failed=timedelta(0))
    await driver.configure_queue(QueueSettings(queue=QUEUE, retention=retention), now=START)
    job = await running(driver, max_stalls=1)

    found = await given_up(driver, "reserve")

    assert [one.id for one in found] == [job.id]
    assert await driver.get([job.id], now=END) == [None]


async def test_only_jobs_that_no_worker_will_settle_are_reported_as_given_up(driver: Driver) -> None:
    """G09: not what runs again or was cancelled, no copy, and no stall that a worker reports itself."""
    again = await running(driver)
    cancelled = await running(driver, max_stalls=1)
    reported = await running(driver, max_stalls=1)
    original = await running(driver, lease_for=HOUR)
    await driver.cancel([cancelled.id], now=START)
    await driver.speculate(original.id, now=START)
    copy = await reserve_one(driver, worker_id=OTHER_WORKER)

    await settle_one(driver, Stalled(reported.lease))
    taken = await driver.reserve(claim(limit=10), now=END)

    assert copy.speculates_on == original.id
    assert (await get_one(driver, reported.id, now=END)).state is JobState.FAILED
    assert (await get_one(driver, cancelled.id, now=END)).state is JobState.CANCELLED
    assert [job.id for job in taken.jobs] == [again.id]
    assert taken.given_up == ()


async def test_a_reclaimed_job_gets_a_new_token_and_a_higher_fence(driver: Driver) -> None:
    """G10: also when the same worker takes it at the same instant."""
    job = await running(driver)

    again = await reserve_one(driver, now=END)

    assert again.token != job.token
    assert again.fence > job.fence


async def test_a_second_sweep_finds_nothing(driver: Driver) -> None:
    """G11 R002-13: idempotent, however often."""
    job = await running(driver)
    first = await sweep(driver)

    async with unchanged(driver, job.id, now=END):
        again = [await sweep(driver), await sweep(driver)]

    assert [answer.id for answer in first] == [job.id]
    assert again == [[], []]


async def test_a_sweep_takes_the_oldest_first_and_pages_through_all(driver: Driver) -> None:
    """G12: by the end of the lease over all queues, a hundred by default."""
    ids = []
    for place in range(12):
        job = await running(driver, queue=f"kit-{place % 3}", lease_for=LEASE - place * SECOND)
        ids.append(job.id)

    pages = [await sweep(driver, 5) for _ in range(4)]

    assert [answer.id for page in pages for answer in page] == ids[::-1]
    assert [len(page) for page in pages] == [5, 5, 2, 0]


async def test_a_sweep_of_250_takes_a_hundred_at_a_time(driver: Driver) -> None:
    """G12: 100, 100, 50, each handled once."""
    await driver.enqueue(new_jobs(250), now=START)
    taken = await reserve(driver, limit=250)

    pages = [await driver.reclaim(now=END) for _ in range(4)]

    assert [len(page) for page in pages] == [100, 100, 50, 0]
    assert {answer.id for page in pages for answer in page} == {job.id for job in taken}


async def test_a_claim_reclaims_a_hundred_of_its_own_queues(driver: Driver) -> None:
    """G12: at least the oldest hundred of the claimed queues are back, those of others are left alone."""
    await driver.enqueue([*new_jobs(120), *new_jobs(3, queue=OTHER_QUEUE)], now=START)
    await reserve(driver, queues=(QUEUE, OTHER_QUEUE), limit=200)

    taken = await reserve(driver, limit=200, now=END)
    others = await found_ids(driver, queue=OTHER_QUEUE, states=(JobState.RUNNING,), now=END)

    assert len(taken) >= 100
    assert all(job.stalls == 1 for job in taken)
    assert len(others) == 3


async def test_a_sweep_makes_no_ghost_of_a_finished_job(driver: Driver) -> None:
    """G13: acknowledged, failed and retried in time; the old ends mean nothing."""
    await driver.enqueue(new_jobs(3), now=START)
    done, failed, retried = await reserve(driver, limit=3)
    await driver.settle(
        [Ack(done.lease), Fail(failed.lease), Retry(retried.lease, HOUR)], now=END - MICROSECOND
    )

    async with unchanged(driver, done.id, failed.id, retried.id, now=END):
        assert await sweep(driver) == []
        assert await reserve(driver, limit=10, now=END) == []


async def test_recovery_needs_nothing_but_the_lease(driver: Driver) -> None:
    """G14 R002-15: the worker was never registered, and nothing reports that it is gone."""
    job = await running(driver, worker_id="never-reported")
    assert await driver.workers(now=START) == []

    [answer] = await sweep(driver)

    assert (answer.id, answer.result) == (job.id, ReclaimResult.REQUEUED)


async def test_a_sweep_never_touches_a_lease_with_a_microsecond_left(driver: Driver) -> None:
    """G15: not one of five, while the sixth is over."""
    alive = [(await running(driver)).id for _ in range(5)]
    over = await running(driver, lease_for=LEASE - MICROSECOND)
    now = END - MICROSECOND
    before = await driver.get(alive, now=now)

    answers = await sweep(driver, now=now)

    assert [answer.id for answer in answers] == [over.id]
    assert await driver.get(alive, now=now) == before


async def test_an_expired_lease_is_found_behind_thousands_of_healthy_ones(driver: Driver) -> None:
    """G16: one in ten thousand, with a limit of one."""
    await driver.enqueue(new_jobs(10_000), now=START)
    assert len(await reserve(driver, limit=9_999, lease_for=HOUR)) == 9_999
    [needle] = await reserve(driver, limit=10)

    answers = await sweep(driver, 1)

    assert [answer.id for answer in answers] == [needle.id]


async def test_two_sweepers_count_every_stall_once(driver: Driver) -> None:
    """G17: side by side on two handles, while two claimers take what they free."""
    await driver.enqueue(new_jobs(60), now=START)
    ids = {job.id for job in await reserve(driver, limit=60)}
    other = await driver.another().open()

    claims = asyncio.gather(*(reserve(each, limit=10, now=END) for each in (driver, other)))
    swept = await asyncio.gather(*(each.reclaim(20, now=END) for each in (driver, other) * 3))
    await claims
    await asyncio.gather(driver.reclaim(now=END), other.reclaim(now=END))
    await other.close()
    records = await driver.get(sorted(ids), now=END)

    swept_ids = [answer.id for page in swept for answer in page]
    assert len(swept_ids) == len(set(swept_ids))
    assert all(job is not None and job.stalls == 1 for job in records)


async def test_an_expired_job_whose_cancel_was_requested_is_cancelled(driver: Driver) -> None:
    """G18 R003-24: no stall counted, not even the last one; no failure job."""
    await driver.configure_queue(QueueSettings(queue=QUEUE, fail_queue=OTHER_QUEUE), now=START)
    job = await running(driver, max_stalls=1)
    await driver.cancel([job.id], now=START)

    [answer] = await sweep(driver)
    record = await get_one(driver, job.id, now=END)

    assert (answer.result, record.state) == (ReclaimResult.CANCELLED, JobState.CANCELLED)
    assert (record.stalls, record.attempts, record.failure_kind) == (0, 0, None)
    assert await found_ids(driver, queue=OTHER_QUEUE) == []


async def test_an_expired_job_with_a_blocked_one_behind_it_becomes_one_waiting_job(driver: Driver) -> None:
    """G19: reported as merged, once; what was blocked is never beside it."""
    job = await running(driver, key=b"k", payload=b"old")
    await enqueue_one(driver, key=b"k", payload=b"new")

    answers = [await sweep(driver), await sweep(driver)]
    taken = await reserve(driver, limit=10, now=END)

    assert [[(answer.id, answer.result) for answer in page] for page in answers] == [
        [(job.id, ReclaimResult.MERGED)],
        [],
    ]
    assert [(entry.id, entry.payload) for entry in taken] == [(job.id, b"new")]


async def test_an_expired_job_that_fails_releases_the_blocked_one(driver: Driver) -> None:
    """G19: its stalls are used up, so the other one is free, once."""
    job = await running(driver, key=b"k", max_stalls=1)
    blocked = await enqueue_one(driver, key=b"k")

    [answer] = await sweep(driver)
    taken = await reserve(driver, limit=10, now=END)

    assert (answer.id, answer.result) == (job.id, ReclaimResult.FAILED)
    assert [entry.id for entry in taken] == [blocked.id]


@pytest.mark.parametrize("limit", [0, -1, 10_001, 1.5])
async def test_a_sweep_of_no_sensible_size_is_refused(driver: Driver, limit: int) -> None:
    """G12: and touches nothing."""
    job = await running(driver)
    before = await snapshot(driver, job.id, now=END)

    with pytest.raises(InvalidArgument):
        await sweep(driver, limit)

    assert await snapshot(driver, job.id, now=END) == before


async def test_a_sweep_at_the_end_of_one_lease_does_not_lose_sight_of_another(driver: Driver) -> None:
    """G13: in another queue, extended since: it is found there when its own time comes."""
    await running(driver, lease_for=LEASE)
    other = await running(driver, queue=OTHER_QUEUE, lease_for=LEASE)
    await extend_one(driver, other.lease, 2 * LEASE)

    [swept] = await driver.reclaim(now=START + LEASE)
    taken = await reserve(driver, queues=(OTHER_QUEUE,), now=START + 2 * LEASE)

    assert swept.queue == QUEUE
    assert [job.id for job in taken] == [other.id]


async def test_the_ack_of_a_link_does_not_lose_sight_of_another_lease(driver: Driver) -> None:
    """G13: of a job of another claim, which is found when its time comes."""
    requires(driver, "workflows")
    root = group()
    [first] = children(root, 1)
    await store(driver, root, first, after(first))
    [link] = await take(driver, first)
    other = await running(driver, lease_for=LEASE)

    await settle_one(driver, Ack(link.lease))

    assert [swept.id for swept in await driver.reclaim(now=START + LEASE)] == [other.id]
