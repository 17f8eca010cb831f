"""V: what a job remembers of its attempts."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.errors import LeaseLost
from taskharbor.model.job import AttemptRecord
from taskharbor.model.settlement import Ack, Cancelled, Fail, Release, Retry, Settlement, Stalled
from taskharbor.model.text import ERROR_LIMIT, TRACE_LIMIT, safe_text
from taskharbor.testing.conformance.kit import (
    ENDS,
    LEASE,
    MINUTE,
    OTHER_WORKER,
    SECOND,
    START,
    WORKER,
    Moment,
    extend_one,
    get_one,
    reserve_one,
    running,
    settle_one,
    unchanged,
)

END = START + LEASE


@pytest.mark.parametrize(
    ("end", "fields", "outcome", "error"),
    [
        (Retry, {"reason": "no route"}, "retried", "no route"),
        (Retry, {"reason": "no route", "trace": "line 1\nline 2"}, "retried", "line 1\nline 2"),
        (Fail, {"reason": "no such user"}, "failed", "no such user"),
        (Fail, {"reason": "short", "trace": "long"}, "failed", "long"),
        (Stalled, {"reason": "killed by signal 9"}, "stalled", "killed by signal 9"),
        (Cancelled, {"reason": "not needed"}, "cancelled", "not needed"),
        (Cancelled, {}, "cancelled", None),
        (Release, {}, "released", None),
        (Release, {"delay": MINUTE}, "released", None),
    ],
    ids=lambda value: getattr(value, "__name__", None) or repr(value),
)
async def test_every_attempt_that_was_no_plain_success_is_remembered(
    driver: Driver, end: type[Settlement], fields: dict[str, Any], outcome: str, error: str | None
) -> None:
    """V01: (history) fence, worker, start, end, outcome and error."""
    job = await running(driver)

    await settle_one(driver, end(job.lease, **fields), now=START + SECOND)
    record = await get_one(driver, job.id, now=START + SECOND)

    assert record.history == (AttemptRecord(job.fence, WORKER, START, START + SECOND, outcome, error),)


@pytest.mark.parametrize("end", [Retry, Fail], ids=["Retry", "Fail"])
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["plain", "cancelled"])
async def test_the_class_of_the_error_is_remembered(
    driver: Driver, end: type[Retry | Fail], is_cancelled: bool
) -> None:
    """V01: (history) with its module, beside the error; none where no exception ended the attempt."""
    job = await running(driver)
    await settle_one(driver, Release(job.lease))
    job = await reserve_one(driver)
    if is_cancelled:
        await driver.cancel([job.id], now=START)

    await settle_one(driver, end(job.lease, reason="no", error_class="app.errors.Shop.Closed"))
    record = await get_one(driver, job.id)

    assert [entry.error_class for entry in record.history] == [None, "app.errors.Shop.Closed"]


@pytest.mark.parametrize("name", ["app.Fehlerhäufung", "app.\0", "app." + "x" * 3000])
async def test_the_class_of_an_error_is_kept_as_a_safe_short_text(driver: Driver, name: str) -> None:
    """V01: (history) cut like the last error."""
    job = await running(driver)

    await settle_one(driver, Fail(job.lease, "no", error_class=name))
    [entry] = (await get_one(driver, job.id)).history

    assert entry.error_class == safe_text(name, ERROR_LIMIT)


async def test_a_first_try_success_is_not_worth_an_entry(driver: Driver) -> None:
    """V01: (history) a second-try success is, beside the failure before it."""
    plain, retried = await running(driver, queue="kit-a"), await running(driver, queue="kit-b")
    await settle_one(driver, Ack(plain.lease))
    await settle_one(driver, Retry(retried.lease, reason="why"))
    again = await reserve_one(driver, queues=("kit-b",))
    await settle_one(driver, Ack(again.lease), now=START + SECOND)

    records = await driver.get([plain.id, retried.id], now=START)

    assert [[entry.outcome for entry in job.history] for job in records if job] == [
        [],
        ["retried", "completed"],
    ]


async def test_an_expired_attempt_is_remembered_with_the_worker_that_fell_silent(driver: Driver) -> None:
    """V01: (history) by sweep and by claim alike; it ended when it was noticed."""
    job = await running(driver)
    again = await reserve_one(driver, now=END + SECOND, worker_id=OTHER_WORKER)
    await driver.reclaim(now=END + SECOND + LEASE)

    record = await get_one(driver, job.id, now=END + MINUTE)
    first, second = record.history

    assert (first.fence, first.worker_id, first.outcome) == (job.fence, WORKER, "stalled")
    assert (first.started_at, first.ended_at) == (START, END + SECOND)
    assert (second.fence, second.worker_id, second.outcome) == (again.fence, OTHER_WORKER, "stalled")
    assert (second.started_at, second.ended_at) == (END + SECOND, END + SECOND + LEASE)
    assert first.error
    assert WORKER in first.error


async def test_the_last_ten_attempts_are_kept(driver: Driver) -> None:
    """V01: (history) of thirteen, the newest ten, oldest first."""
    clock = Moment()
    job = await running(driver)
    for number in range(13):
        await settle_one(driver, Retry(job.lease, reason=f"number {number}"), now=clock.now())
        job = await reserve_one(driver, now=clock.advance(SECOND))

    assert [entry.error for entry in job.history] == [f"number {number}" for number in range(3, 13)]
    assert [entry.fence for entry in job.history] == sorted({entry.fence for entry in job.history})


@pytest.mark.parametrize("letter", ["x", "€", "🚢"])
async def test_a_long_trace_is_cut_at_a_character(driver: Driver, letter: str) -> None:
    """V01: (history) at most 8 KiB, its beginning kept, never half a character."""
    job = await running(driver)

    await settle_one(driver, Retry(job.lease, reason="short", trace="at " + letter * 20_000))
    record = await get_one(driver, job.id)
    [entry] = record.history

    assert record.last_error == "short"
    assert entry.error is not None
    assert len(entry.error.encode()) <= TRACE_LIMIT
    assert entry.error.startswith("at " + letter * 1000)
    assert set(entry.error[3:].rstrip("…")) == {letter}


@pytest.mark.parametrize("end", ENDS)
async def test_a_cancelled_run_is_remembered_as_such(driver: Driver, end: str) -> None:
    """V01: (history) however its worker settled it."""
    job = await running(driver)
    await driver.cancel([job.id], now=START)

    await settle_one(driver, ENDS[end](job.lease))
    record = await get_one(driver, job.id)

    assert [entry.outcome for entry in record.history] == ["cancelled"]


async def test_nothing_but_the_end_of_an_attempt_is_remembered(driver: Driver) -> None:
    """V01: (history) no extension, no refused settlement, no cancel request."""
    job = await running(driver)
    await extend_one(driver, job.lease)
    await driver.cancel([job.id], now=START)

    async with unchanged(driver, job.id, now=END):
        [answer] = await driver.settle([Fail(job.lease, "late")], now=END)

    assert isinstance(answer, LeaseLost)
    assert (await get_one(driver, job.id)).history == ()


async def test_a_requeued_job_remembers_its_earlier_lives(driver: Driver) -> None:
    """V01: (history) the history goes on where it was."""
    job = await running(driver)
    await settle_one(driver, Fail(job.lease, "first life"))

    await driver.requeue([job.id], now=START)
    again = await reserve_one(driver)
    await settle_one(driver, Fail(again.lease, "second life"))
    record = await get_one(driver, job.id)

    assert [entry.error for entry in record.history] == ["first life", "second life"]
