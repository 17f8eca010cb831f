"""Clocks: an explicit `now` is the only one that counts; without it the store's own clock decides."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query
from taskharbor.errors import InvalidArgument, JobNotInflight, LeaseMismatch
from taskharbor.model.presence import WorkerReport
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MICROSECOND,
    OTHER_WORKER,
    SECOND,
    START,
    claim,
    enqueue_one,
    get_one,
    new_job,
    refused,
    reserve,
    reserve_one,
    running,
    settle_one,
    state_of,
)

PAST = datetime(1983, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
FUTURE = datetime(2177, 8, 9, 10, 11, 12, 131_415, tzinfo=UTC)


@pytest.mark.parametrize("now", [PAST, FUTURE], ids=str)
async def test_a_whole_life_years_away_from_any_real_clock(driver: Driver, now: datetime) -> None:
    """S01 S02 R001-23: every stamp is the given one, and every boundary lies where it says."""
    answer = await enqueue_one(driver, now=now, delay=HOUR)
    assert answer.at == now
    due = now + HOUR
    assert await reserve(driver, now=due - MICROSECOND) == []
    first = await reserve_one(driver, now=due)
    assert (first.started_at, first.lease_expires_at) == (due, due + LEASE)
    assert await driver.reclaim(now=due + LEASE - MICROSECOND) == []
    [reclaimed] = await driver.reclaim(now=due + LEASE)
    assert reclaimed.at == due + LEASE
    again = await reserve_one(driver, now=due + LEASE)
    [extended] = await driver.extend_leases([again.lease], HOUR, now=due + LEASE + SECOND)
    assert not isinstance(extended, Exception)
    assert extended.lease.expires_at == due + LEASE + SECOND + HOUR

    settled = await settle_one(driver, Ack(again.lease), now=due + HOUR)

    record = await get_one(driver, answer.id, now=due + HOUR)
    assert (record.created_at, record.finished_at, record.updated_at) == (now, due + HOUR, due + HOUR)
    assert settled.at == due + HOUR


@pytest.mark.parametrize("now", [PAST, FUTURE], ids=str)
async def test_presence_and_roles_obey_the_given_clock(driver: Driver, now: datetime) -> None:
    """S01: they lapse by it alone."""
    await driver.report_worker(WorkerReport(worker_id="a"), ttl=LEASE, now=now)
    await driver.hold_role("leader", "a", LEASE, now=now)

    assert len(await driver.workers(now=now + LEASE - MICROSECOND)) == 1
    assert await driver.workers(now=now + LEASE) == []
    assert (await driver.hold_role("leader", "b", LEASE, now=now + LEASE)).is_mine


async def test_a_clock_that_goes_back_revives_nothing_that_was_handed_on(driver: Driver) -> None:
    """S05: the token decides who may write, whatever the time."""
    first = await running(driver)
    second = await reserve_one(driver, now=START + LEASE, worker_id=OTHER_WORKER)

    assert isinstance(await refused(driver, Ack(first.lease), now=START), LeaseMismatch)
    await settle_one(driver, Ack(second.lease), now=START + SECOND)
    assert isinstance(await refused(driver, Ack(second.lease), now=START), JobNotInflight)


async def test_a_clock_that_goes_back_starts_nothing_early(driver: Driver) -> None:
    """S05 I14: a job that was promoted waits again when it is not due any more."""
    answer = await enqueue_one(driver, run_at=START + HOUR)
    await driver.promote(now=START + HOUR)

    assert await reserve(driver, now=START) == []
    assert await state_of(driver, answer.id, now=START) is JobState.SCHEDULED
    assert len(await reserve(driver, now=START + HOUR)) == 1


@pytest.mark.parametrize("microseconds", [1, 100, 499, 500, 999])
async def test_an_expiry_inside_a_millisecond_is_exact(driver: Driver, microseconds: int) -> None:
    """S07 AM04: neither rounded down to reclaim early nor up to keep it longer."""
    lease_for = SECOND + timedelta(microseconds=microseconds)
    job = await running(driver, lease_for=lease_for)

    assert await driver.reclaim(now=START + lease_for - MICROSECOND) == []
    assert [answer.id for answer in await driver.reclaim(now=START + lease_for)] == [job.id]


@pytest.mark.parametrize("now", [FUTURE, datetime(2199, 12, 31, 22, 0, 0, 1, tzinfo=UTC)], ids=str)
async def test_large_instants_are_compared_exactly(driver: Driver, now: datetime) -> None:
    """S08: sixteen digits of microseconds, and the last one counts."""
    first = await enqueue_one(driver, now=now, run_at=now + SECOND + MICROSECOND)
    second = await enqueue_one(driver, now=now, run_at=now + SECOND)

    assert await reserve(driver, now=now + SECOND - MICROSECOND) == []
    assert [job.id for job in await reserve(driver, now=now + SECOND, limit=2)] == [second.id]
    assert [job.id for job in await reserve(driver, now=now + SECOND + MICROSECOND, limit=2)] == [first.id]


async def test_a_step_forward_gives_a_second_run_and_no_stale_write(driver: Driver) -> None:
    """S10: the first worker's result is refused, the second one's kept."""
    first = await running(driver)
    second = await reserve_one(driver, now=START + 1000 * HOUR, worker_id=OTHER_WORKER)

    assert isinstance(await refused(driver, Ack(first.lease, b"stale"), now=START + SECOND), LeaseMismatch)
    await settle_one(driver, Ack(second.lease, b"fresh"), now=START + 1000 * HOUR)

    assert (await get_one(driver, first.id)).result == b"fresh"


# ------------------------------------------------------------------ the store's own clock


async def test_without_a_now_the_clock_of_the_store_stamps_everything(driver: Driver) -> None:
    """S03 S06: between two looks at that clock, in this order."""
    before = (await driver.info()).at
    [enqueued] = await driver.enqueue([new_job()])
    [job] = (await driver.reserve(claim(lease_for=HOUR))).jobs
    [settled] = await driver.settle([Ack(job.lease)])
    after = (await driver.info()).at

    assert not isinstance(settled, Exception)
    assert job.started_at is not None
    assert before <= enqueued.at <= job.started_at <= settled.at <= after
    assert job.created_at == enqueued.at
    assert job.lease_expires_at == job.started_at + HOUR


async def test_without_a_now_a_delay_counts_from_the_clock_of_the_store(driver: Driver) -> None:
    """S04: not due now, due then."""
    [answer] = await driver.enqueue([new_job(delay=HOUR)])

    [job] = await driver.get([answer.id])
    assert job is not None
    assert job.run_at == answer.at + HOUR
    assert (await driver.reserve(claim())).jobs == []
    assert (await driver.promote()).count == 0
    assert (await driver.count())[job.queue].scheduled == 1
    assert len((await driver.reserve(claim(), now=answer.at + HOUR)).jobs) == 1


async def test_without_a_now_a_valid_lease_is_left_alone(driver: Driver) -> None:
    """S03 S04: no early reclaim, and the owner can extend and settle."""
    await driver.enqueue([new_job()])
    [job] = (await driver.reserve(claim(lease_for=HOUR))).jobs

    assert await driver.reclaim() == []
    assert (await driver.reserve(claim())).jobs == []
    [extended] = await driver.extend_leases([job.lease], HOUR)
    assert not isinstance(extended, Exception)
    assert extended.lease.expires_at is not None
    assert extended.lease.expires_at - extended.at == HOUR
    [reclaimed] = await driver.reclaim(now=extended.lease.expires_at)
    assert reclaimed.id == job.id


async def test_without_a_now_what_lies_far_in_the_past_is_due_and_over(driver: Driver) -> None:
    """S06: an old run_at runs, an old lease is reclaimed."""
    await driver.enqueue([new_job()], now=PAST)
    [job] = (await driver.reserve(claim(), now=PAST)).jobs

    assert [answer.id for answer in await driver.reclaim()] == [job.id]
    assert len((await driver.reserve(claim(lease_for=HOUR))).jobs) == 1
    page = await driver.find(Query())
    assert [found.state for found in page.jobs] == [JobState.RUNNING]


@pytest.mark.parametrize(
    ("types", "in_front"), [(None, 0), (("work",), 0), (("work",), 100)], ids=["any", "one", "far"]
)
async def test_without_a_now_a_job_made_by_a_clock_that_was_ahead_runs(
    driver: Driver, types: tuple[str, ...] | None, in_front: int
) -> None:
    """S05: without a `run_at` it is ready, however late it was made, and behind jobs of other types."""
    await driver.enqueue([new_job(type="other") for _ in range(in_front)], now=FUTURE)
    [one, two] = [new_job(type="work"), new_job(type="work")]
    await driver.enqueue([one], now=FUTURE)
    await driver.enqueue([two], now=FUTURE + MICROSECOND)

    jobs = (await driver.reserve(claim(limit=5, types=types, lease_for=HOUR))).jobs

    assert [job.id for job in jobs] == [one.id, two.id]


async def test_a_now_without_a_time_zone_is_refused_by_every_kind_of_verb(driver: Driver) -> None:
    """S09 A08: before anything happens."""
    naive = START.replace(tzinfo=None)

    for call in (
        driver.enqueue([new_job()], now=naive),
        driver.reserve(claim(), now=naive),
        driver.reclaim(now=naive),
        driver.get([], now=naive),
        driver.workers(now=naive),
        driver.schedules(now=naive),
    ):
        with pytest.raises(InvalidArgument):
            await call
