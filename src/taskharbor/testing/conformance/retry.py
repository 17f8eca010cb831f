"""T: another try, a job handed back, and a job that asks to run later."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.one_job import RetryUpdate
from taskharbor.errors import InvalidArgument, JobNotInflight, LeaseExpired, LeaseMismatch
from taskharbor.model.job import FailureKind, Lease
from taskharbor.model.settlement import Release, Retry
from taskharbor.model.state import JobState
from taskharbor.model.text import ERROR_LIMIT
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    SECOND,
    START,
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
    unchanged,
)

END = START + LEASE


@pytest.mark.parametrize(
    "later", [{"delay": MINUTE}, {"run_at": START + MINUTE}, {"delay": MICROSECOND}], ids=str
)
async def test_a_retry_for_later_is_scheduled(driver: Driver, later: dict[str, Any]) -> None:
    """T01 N14: by delay or by run_at, eligible exactly then."""
    due = later.get("run_at") or START + later["delay"]
    job = await running(driver)

    answer = await settle_one(driver, Retry(job.lease, **later))
    record = await get_one(driver, job.id)
    early = await reserve(driver, now=due - MICROSECOND)
    again = await reserve_one(driver, now=due)

    assert (answer.state, record.state, record.run_at) == (JobState.SCHEDULED, JobState.SCHEDULED, due)
    assert (early, again.id) == ([], job.id)


@pytest.mark.parametrize(
    ("when", "run_at"),
    [
        ({}, None),
        ({"delay": timedelta(0)}, None),
        ({"run_at": START - HOUR}, START - HOUR),
        ({"run_at": START}, START),
    ],
    ids=str,
)
async def test_a_retry_without_a_later_time_is_ready(
    driver: Driver, when: dict[str, Any], run_at: datetime | None
) -> None:
    """T02 T03: nothing given, zero, the past and now."""
    job = await running(driver)

    answer = await settle_one(driver, Retry(job.lease, **when))

    record = await get_one(driver, job.id)
    assert (answer.state, record.state, record.run_at) == (JobState.READY, JobState.READY, run_at)
    assert (await reserve_one(driver)).id == job.id


async def test_a_retry_keeps_what_went_wrong(driver: Driver) -> None:
    """T04 T05 T06: the whole record: one attempt more, error, kind, time, and no lease."""
    job = await running(driver, payload=b"work", run_at=START)
    before = await get_one(driver, job.id)
    now = START + SECOND

    await settle_one(
        driver, Retry(job.lease, MINUTE, "no route", FailureKind.TIMEOUT, "trace of it"), now=now
    )
    after = await get_one(driver, job.id, now=now)

    assert after == msgspec.structs.replace(
        before,
        state=JobState.SCHEDULED,
        run_at=now + MINUTE,
        attempts=1,
        last_error="no route",
        failure_kind="timeout",
        failed_at=now,
        updated_at=now,
        version=before.version + 1,
        lease_expires_at=None,
        worker_id=None,
        settled_token=job.token,
        history=after.history,
    )
    assert [entry.outcome for entry in after.history] == ["retried"]


async def test_each_retry_counts_one_attempt(driver: Driver) -> None:
    """T05: the store counts; five retries are five."""
    job = await running(driver)
    for _ in range(4):
        await settle_one(driver, Retry(job.lease))
        job = await reserve_one(driver)
    await settle_one(driver, Retry(job.lease))

    record = await get_one(driver, job.id)

    assert (record.attempts, record.starts, record.stalls) == (5, 5, 0)


@pytest.mark.parametrize("attempts", [0, 1, 41])
async def test_the_one_job_form_stores_what_it_is_given(driver: Driver, attempts: int) -> None:
    """T05 R001-16: attempts, run_at, last_error and failed_at, as the caller says."""
    job = await running(driver)
    assert job.token is not None
    update = RetryUpdate(
        attempts=attempts, run_at=START + HOUR, last_error="as given", failed_at=START - MINUTE
    )

    answer = await driver.retry(job.id, job.token, START, update)
    record = await get_one(driver, job.id)

    assert answer.state is JobState.SCHEDULED
    assert (record.attempts, record.run_at) == (attempts, START + HOUR)
    assert (record.last_error, record.failed_at) == ("as given", START - MINUTE)


async def test_a_retried_job_keeps_its_place_among_equals(driver: Driver) -> None:
    """T07: same seq and priority; with an empty run_at its place follows its creation again."""
    job = await running(driver, priority=2)
    younger = await enqueue_one(driver, priority=2, now=START + SECOND)

    await settle_one(driver, Retry(job.lease), now=START + SECOND)
    taken = await reserve(driver, limit=2, now=START + SECOND)

    assert [entry.id for entry in taken] == [job.id, younger.id]
    assert (taken[0].seq, taken[0].priority) == (job.seq, 2)


async def test_a_retry_needs_the_token_in_time_and_a_running_job(driver: Driver) -> None:
    """T08 T09: LeaseMismatch, LeaseExpired, and nothing counted."""
    job = await running(driver)

    async with unchanged(driver, job.id):
        mismatch = await refused(driver, Retry(Lease(job.id, WRONG_TOKEN), reason="no"))
    async with unchanged(driver, job.id, now=END):
        expired = await refused(driver, Retry(job.lease, reason="no"), now=END)

    assert (type(mismatch), type(expired)) == (LeaseMismatch, LeaseExpired)


@pytest.mark.parametrize("state", [state for state in JobState if state is not JobState.RUNNING])
async def test_only_a_running_job_can_be_retried(driver: Driver, state: JobState) -> None:
    """T10: JobNotInflight for all the others, also with the token that ended it."""
    job = await in_state(driver, state)

    async with unchanged(driver, job.id):
        answer = await refused(driver, Retry(Lease(job.id, job.settled_token or WRONG_TOKEN)))

    assert isinstance(answer, JobNotInflight)


async def test_a_repeated_retry_counts_once(driver: Driver) -> None:
    """T11: the second finds the job not running; also in one call."""
    job = await running(driver)

    first, second = await driver.settle([Retry(job.lease), Retry(job.lease)], now=START)
    third = await refused(driver, Retry(job.lease))

    assert not isinstance(first, Exception)
    assert (type(second), type(third)) == (JobNotInflight, JobNotInflight)
    assert (await get_one(driver, job.id)).attempts == 1


async def test_a_driver_never_judges_a_retry(driver: Driver) -> None:
    """T12: with every attempt used up, Retry still means waiting: the core decides, not the store."""
    job = await running(driver, max_attempts=1)

    answer = await settle_one(driver, Retry(job.lease))
    again = await reserve_one(driver)

    assert answer.state is JobState.READY
    assert (again.id, again.attempts, again.max_attempts) == (job.id, 1, 1)


@pytest.mark.parametrize("letter", ["x", "é", "€", "🚢"])
async def test_a_long_error_is_cut_at_a_character(driver: Driver, letter: str) -> None:
    """T13: never more than the limit in bytes, never half a character, the beginning kept."""
    job = await running(driver)

    await settle_one(driver, Retry(job.lease, reason="why: " + letter * 5000))
    kept = (await get_one(driver, job.id)).last_error

    assert kept is not None
    assert len(kept.encode()) <= ERROR_LIMIT
    assert kept.startswith("why: " + letter * 100)
    assert set(kept[5:].rstrip("…")) == {letter}


async def test_a_released_job_is_ready_and_nothing_is_counted(driver: Driver) -> None:
    """T14 T15: neither attempt nor stall nor error; it keeps its place."""
    await driver.enqueue(new_jobs(2), now=START)
    first, second = await reserve(driver, limit=2)
    before = await get_one(driver, first.id)

    answer = await settle_one(driver, Release(first.lease), now=START + SECOND)
    await settle_one(driver, Release(second.lease))
    after = await get_one(driver, first.id, now=START + SECOND)
    taken = await reserve(driver, limit=2, now=START + SECOND)

    assert answer.state is JobState.READY
    assert after == msgspec.structs.replace(
        before,
        state=JobState.READY,
        updated_at=START + SECOND,
        version=before.version + 1,
        lease_expires_at=None,
        worker_id=None,
        settled_token=first.token,
        history=after.history,
    )
    assert [entry.outcome for entry in after.history] == ["released"]
    assert [job.id for job in taken] == [first.id, second.id]


async def test_a_release_without_delay_keeps_run_at(driver: Driver) -> None:
    """T15: a job that was due at :10 still goes before one made at :20."""
    due = START + 10 * SECOND
    await enqueue_one(driver, run_at=due)
    younger = await enqueue_one(driver, now=START + 20 * SECOND)
    job = await reserve_one(driver, now=START + 30 * SECOND)

    await settle_one(driver, Release(job.lease), now=START + 30 * SECOND)
    taken = await reserve(driver, limit=2, now=START + 30 * SECOND)

    assert (await get_one(driver, job.id)).run_at == due
    assert [entry.id for entry in taken] == [job.id, younger.id]


async def test_a_late_worker_cannot_hand_a_job_back(driver: Driver) -> None:
    """T16: not with an old token, not after the end."""
    job = await running(driver)

    async with unchanged(driver, job.id, now=END):
        expired = await refused(driver, Release(job.lease), now=END)
    await reserve_one(driver, now=END)
    async with unchanged(driver, job.id, now=END):
        mismatch = await refused(driver, Release(job.lease), now=END)

    assert (type(expired), type(mismatch)) == (LeaseExpired, LeaseMismatch)


@pytest.mark.parametrize("delay", [MICROSECOND, HOUR], ids=str)
async def test_a_snoozed_job_runs_later_and_nothing_is_counted(driver: Driver, delay: timedelta) -> None:
    """T17 N14: run_at = now + delay by the deciding clock, eligible exactly then."""
    job = await running(driver)
    now = START + SECOND

    answer = await settle_one(driver, Release(job.lease, delay), now=now)
    record = await get_one(driver, job.id, now=now)
    early = await reserve(driver, now=now + delay - MICROSECOND)
    again = await reserve_one(driver, now=now + delay)

    assert (answer.state, record.run_at) == (JobState.SCHEDULED, now + delay)
    assert (record.attempts, record.stalls, record.last_error) == (0, 0, None)
    assert (early, again.id, again.starts) == ([], job.id, 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"delay": -SECOND},
        {"delay": SECOND, "run_at": START},
        {"run_at": START.replace(tzinfo=None)},
        {"run_at": START + timedelta(days=4015)},
        {"attempts": -1},
        {"attempts": 1.5},
    ],
    ids=str,
)
async def test_a_retry_that_makes_no_sense_refuses_the_whole_call(
    driver: Driver, fields: dict[str, Any]
) -> None:
    """T01: an invalid argument of one item comes before anything is stored of any."""
    job, other = await running(driver), await running(driver)

    async with unchanged(driver, job.id, other.id):
        with pytest.raises(InvalidArgument):
            await driver.settle([Retry(other.lease), Retry(job.lease, **fields)], now=START)
        with pytest.raises(InvalidArgument):
            await driver.settle([Release(job.lease, -SECOND)], now=START)
