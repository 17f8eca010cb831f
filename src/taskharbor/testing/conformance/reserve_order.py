"""B: who is handed out, in which order, under what lease."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.errors import DuplicateJob
from taskharbor.model.job import JobRecord
from taskharbor.model.settlement import Ack, Fail, Release, Retry, Stalled
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    OTHER_WORKER,
    QUEUE,
    SECOND,
    START,
    WORKER,
    either_clock,
    enqueue,
    enqueue_one,
    get_one,
    in_state,
    new_id,
    new_job,
    new_jobs,
    reserve,
    reserve_one,
    running,
    settle_one,
    unchanged,
)


async def test_an_empty_queue_gives_an_empty_list(driver: Driver) -> None:
    """B01 R000-22: nothing to do is no error."""
    assert await reserve(driver) == []
    assert await driver.reserve_one(QUEUE, START, LEASE) is None


async def test_a_queue_nobody_ever_used_gives_an_empty_list(driver: Driver) -> None:
    """B02: and does not come into being by being asked for."""
    await enqueue_one(driver)

    taken = await reserve(driver, queues=("kit-never-used",))

    assert taken == []
    assert [queue.queue for queue in await driver.queues(now=START)] == [QUEUE]


async def test_a_reserved_job_is_running(driver: Driver) -> None:
    """B03: the record says so, with its holder, and no longer counts as ready."""
    job = await running(driver)

    record = await get_one(driver, job.id)

    assert record.state is JobState.RUNNING
    assert (record.worker_id, record.started_at, record.starts) == (WORKER, START, 1)
    assert (record.updated_at, record.version) == (START, 2)
    assert (await driver.count(now=START))[QUEUE].running == 1


async def test_a_reserved_job_carries_its_lease(driver: Driver) -> None:
    """B04 R000-20 R002-6: token, fence and end; the whole rest of the record is as it was stored."""
    answer = await enqueue_one(driver, payload=b"work", headers={"a": "b"}, priority=3, max_attempts=7)
    before = await get_one(driver, answer.id)
    now = START + SECOND

    job = await reserve_one(driver, now=now)
    after = await get_one(driver, answer.id, now=now)

    assert job.lease.token
    assert job.lease.fence == job.fence > 0
    assert (job.lease.job_id, job.lease.expires_at, job.lease.worker_id) == (job.id, now + LEASE, WORKER)
    assert after == msgspec.structs.replace(
        before,
        state=JobState.RUNNING,
        fence=job.fence,
        lease_expires_at=now + LEASE,
        worker_id=WORKER,
        starts=1,
        started_at=now,
        updated_at=now,
        version=before.version + 1,
    )
    assert job == msgspec.structs.replace(after, token=job.token)


@pytest.mark.parametrize(
    "lease_for", [MICROSECOND, timedelta(seconds=3, microseconds=1), LEASE, timedelta(days=365)], ids=str
)
async def test_a_lease_ends_exactly_after_its_length(driver: Driver, lease_for: timedelta) -> None:
    """B05 R002-6: expiry = now + lease_for, to the microsecond."""
    now = START + timedelta(microseconds=123457)

    job = await running(driver, now=now, lease_for=lease_for)

    assert job.lease_expires_at == now + lease_for
    assert (await get_one(driver, job.id, now=now)).lease_expires_at == now + lease_for


@pytest.mark.parametrize("state", sorted(TERMINAL))
async def test_a_job_that_is_over_is_never_handed_out(driver: Driver, state: JobState) -> None:
    """B06 B07 B08 R001-5: whatever the time is and however often it is claimed."""
    over = await in_state(driver, state)

    taken = [
        await reserve(driver, now=START + later, limit=10)
        for later in (timedelta(0), LEASE, timedelta(days=300))
    ]

    assert taken == [[], [], []]
    assert await get_one(driver, over.id) == over


async def test_a_job_under_a_valid_lease_is_never_handed_out(driver: Driver) -> None:
    """B09 R001-9: not to another worker, not to its own, not in the last microsecond."""
    job = await running(driver)

    for now in (START, START + LEASE - MICROSECOND):
        async with unchanged(driver, job.id, now=now):
            for worker_id in (WORKER, OTHER_WORKER):
                assert await reserve(driver, worker_id=worker_id, limit=10, now=now) == []


@either_clock
async def test_jobs_come_out_in_the_order_they_went_in(driver: Driver, now: datetime | None) -> None:
    """B10 R000-11: a hundred jobs, one call each, a microsecond apart, ids in the opposite order."""
    ids = sorted((new_id() for _ in range(100)), reverse=True)
    for place, job_id in enumerate(ids):
        await enqueue(driver, new_job(id=job_id), now=now and now + place * MICROSECOND)

    taken = [(await reserve_one(driver, lease_for=HOUR, now=now and now + SECOND)).id for _ in ids]

    assert taken == ids


@either_clock
async def test_jobs_of_the_same_microsecond_come_out_by_their_place(
    driver: Driver, now: datetime | None
) -> None:
    """B11: one instant, or one call: the enqueue order decides, not the id."""
    ids = sorted((new_id() for _ in range(40)), reverse=True)
    for job_id in ids[:20]:
        await enqueue(driver, new_job(id=job_id), now=now)
    await enqueue(driver, *(new_job(id=job_id) for job_id in ids[20:]), now=now)

    taken = [(await reserve_one(driver, lease_for=HOUR, now=now)).id for _ in ids]

    assert taken == ids


@either_clock
@pytest.mark.parametrize(
    "priorities",
    [(50, 100, 80), (-100, 100, 0, -1, 1, 99), (0, 0, 5, 0, 5)],
    ids=["positive", "extremes", "ties"],
)
async def test_the_more_urgent_job_comes_first(
    driver: Driver, priorities: tuple[int, ...], now: datetime | None
) -> None:
    """B12 B13 R003-8: higher numbers first, ties in enqueue order."""
    for priority in priorities:
        await enqueue_one(driver, priority=priority, now=now)

    taken = [await reserve_one(driver, lease_for=HOUR, now=now) for _ in priorities]

    assert [job.priority for job in taken] == sorted(priorities, reverse=True)
    assert [job.id for job in taken] == [
        job.id for job in sorted(taken, key=lambda job: (-job.priority, job.seq))
    ]


@either_clock
async def test_priority_then_eligibility_then_place(driver: Driver, now: datetime | None) -> None:
    """B14: the whole order, over every mix of the three."""
    start = now or await _an_hour_ago(driver)
    mixed = [(priority, seconds) for seconds in (40, None, 10, 40, 20, None) for priority in (1, -1, 0)]
    for place, (priority, seconds) in enumerate(mixed):
        run_at = None if seconds is None else start + timedelta(seconds=seconds)
        await enqueue_one(driver, priority=priority, run_at=run_at, now=start + timedelta(seconds=place))

    taken = [await reserve_one(driver, lease_for=HOUR, now=now and now + HOUR) for _ in mixed]

    assert [job.id for job in taken] == [
        job.id for job in sorted(taken, key=lambda job: (-job.priority, job.eligible_at, job.seq))
    ]


async def _an_hour_ago(driver: Driver) -> datetime:
    """By the clock of the store: what is made due then is due when a claim comes without a `now`."""
    return (await driver.info()).at - HOUR


@either_clock
@pytest.mark.parametrize("types", [None, ("kit.job",)], ids=["all-types", "some-types"])
@pytest.mark.parametrize("way", ["release", "retry", "stall", "reclaim", "requeue"])
async def test_a_job_that_another_worker_hands_back_goes_before_younger_ones(
    driver: Driver, way: str, types: tuple[str, ...] | None, now: datetime | None
) -> None:
    """B14: also for a worker that is in the middle of taking those, one full claim after the other."""
    ids = await enqueue(driver, *new_jobs(10), now=now)

    async def take_two() -> list[str]:
        jobs = await reserve(driver, limit=2, types=types, lease_for=24 * HOUR, now=now)
        return [job.id for job in jobs]

    async with driver.another() as other:
        [job] = await reserve(other, worker_id=OTHER_WORKER, lease_for=HOUR, now=now)
        taken = await take_two() + await take_two()
        await _hand_back(other, way, job, now)

    taken += await take_two() + await take_two()

    assert job.id == ids[0]
    assert taken == [*ids[1:5], ids[0], *ids[5:8]]


async def _hand_back(driver: Driver, way: str, job: JobRecord, now: datetime | None) -> None:
    """Make a running job ready again, in its old place."""
    match way:
        case "release":
            await settle_one(driver, Release(job.lease), now=now)
        case "retry":
            await settle_one(driver, Retry(job.lease), now=now)
        case "stall":
            await settle_one(driver, Stalled(job.lease), now=now)
        case "reclaim":
            [reclaimed] = await driver.reclaim(now=job.lease_expires_at)
            assert reclaimed.id == job.id
        case "requeue":
            await settle_one(driver, Fail(job.lease, "broken"), now=now)
            await driver.requeue([job.id], run_at=job.created_at, now=now)


@either_clock
async def test_a_due_job_is_where_its_time_puts_it(driver: Driver, now: datetime | None) -> None:
    """B15: a job due at :10 goes behind one made at :05 and before one made at :20."""
    start = now or await _an_hour_ago(driver)
    due = await enqueue_one(driver, run_at=start + 10 * SECOND, now=start)
    older = await enqueue_one(driver, now=start + 5 * SECOND)
    younger = await enqueue_one(driver, now=start + 20 * SECOND)

    taken = await reserve(driver, limit=3, now=now and now + MINUTE)

    assert [job.id for job in taken] == [older.id, due.id, younger.id]


@either_clock
async def test_a_job_of_the_future_is_never_in_the_way(driver: Driver, now: datetime | None) -> None:
    """B16: a hundred urgent jobs of tomorrow and one plain job of now."""
    await driver.enqueue(new_jobs(100, priority=100, delay=24 * HOUR), now=now)
    ready = await enqueue_one(driver, now=now and now + SECOND)

    taken = await reserve(driver, limit=10, now=now and now + SECOND)

    assert [job.id for job in taken] == [ready.id]


@either_clock
async def test_one_claim_gives_up_to_its_limit_and_never_one_job_twice(
    driver: Driver, now: datetime | None
) -> None:
    """B19 B20: seven of ten, in order, then the other three, each under a token that is not the first's."""
    ids = await enqueue(driver, *(new_job(priority=place % 3) for place in range(10)), now=now)
    wanted = sorted(ids, key=lambda job_id: -(ids.index(job_id) % 3))

    first = await reserve(driver, limit=7, lease_for=HOUR, now=now)
    second = await reserve(driver, limit=7, lease_for=HOUR, now=now)

    assert [job.id for job in first + second] == wanted
    assert {job.token for job in first}.isdisjoint({job.token for job in second})
    assert all(job.started_at and job.lease_expires_at == job.started_at + HOUR for job in first + second)


async def test_every_job_of_a_claim_can_be_settled_on_its_own(driver: Driver) -> None:
    """B19: the leases of one claim do not end together."""
    await driver.enqueue(new_jobs(3), now=START)
    done, failed, kept = await reserve(driver, limit=3)

    await settle_one(driver, Ack(done.lease))
    await settle_one(driver, Fail(failed.lease, "broken"))

    assert (await get_one(driver, kept.id)).state is JobState.RUNNING
    await settle_one(driver, Ack(kept.lease), now=START + LEASE - MICROSECOND)


async def test_a_requeued_keyed_job_respects_its_key(driver: Driver) -> None:
    """B22: (requeue of a keyed job) its key runs → blocked; it waits or is blocked → DuplicateJob."""
    first = await in_state(driver, JobState.FAILED, key=b"k")
    second = await in_state(driver, JobState.FAILED, key=b"k")
    third = await in_state(driver, JobState.FAILED, key=b"k")
    holder = await running(driver, key=b"k")

    [blocked] = await driver.requeue([first.id], now=START)
    async with unchanged(driver, first.id, second.id, holder.id):
        [behind_blocked] = await driver.requeue([second.id], now=START)
    await settle_one(driver, Ack(holder.lease))
    async with unchanged(driver, first.id, second.id, third.id):
        [behind_waiting] = await driver.requeue([third.id], now=START)

    assert getattr(blocked, "state", None) is JobState.BLOCKED
    assert isinstance(behind_blocked, DuplicateJob)
    assert isinstance(behind_waiting, DuplicateJob)
    assert behind_blocked.existing_id == behind_waiting.existing_id == first.id
    assert (await reserve_one(driver)).id == first.id


async def test_every_claim_raises_the_fence(driver: Driver) -> None:
    """B24: by release, retry, expiry and requeue, within one microsecond and with a clock that steps back."""
    job = await running(driver)
    fences, tokens = [job.fence], [job.token]

    async def again(now: timedelta = timedelta(0)) -> None:
        nonlocal job
        job = await reserve_one(driver, now=START + now, lease_for=SECOND)
        fences.append(job.fence)
        tokens.append(job.token)

    await settle_one(driver, Release(job.lease))
    await again()
    await settle_one(driver, Retry(job.lease))
    await again(-HOUR)
    await settle_one(driver, Fail(job.lease), now=START - HOUR)
    await driver.requeue([job.id], now=START - HOUR)
    await again(-HOUR)
    await again(-HOUR + SECOND)

    assert fences == sorted(set(fences))
    assert len(set(tokens)) == len(tokens)


async def test_the_one_job_form_reserves_like_a_claim_for_one(driver: Driver) -> None:
    """B03: reserve_one is the same verb for a single job of one queue."""
    first = await enqueue_one(driver, priority=1)
    await enqueue_one(driver)

    job = await driver.reserve_one(QUEUE, START, LEASE)

    assert job is not None
    assert (job.id, job.lease_expires_at) == (first.id, START + LEASE)
