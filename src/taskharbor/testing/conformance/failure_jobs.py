"""Failure queues: what a failed job leaves there, exactly once, in the step that failed it."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Counts, Query
from taskharbor.model.checks import check_id
from taskharbor.model.job import FAILURE_TYPE, JobRecord
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings
from taskharbor.model.settlement import Ack, Cancelled, Fail, Retry, Stalled
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    LEASE,
    MINUTE,
    OTHER_QUEUE,
    QUEUE,
    SECOND,
    START,
    find_all,
    found_ids,
    new_job,
    new_jobs,
    requires,
    reserve,
    reserve_one,
    running,
    settle_one,
    state_of,
)

DEAD = "kit-dead"


async def send_failures_to(driver: Driver, fail_queue: str | None = DEAD, queue: str = QUEUE) -> None:
    await driver.configure_queue(QueueSettings(queue=queue, fail_queue=fail_queue), now=START)


async def failure_jobs(driver: Driver, queue: str = DEAD) -> list[JobRecord]:
    """What waits in the failure queue. A store that moves it there later does so by the next reserve."""
    await driver.reserve_one(QUEUE, START, LEASE, "kit-mover")
    return await find_all(driver, Query(queue=queue))


def report_of(job: JobRecord) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(job.payload)
    return decoded


async def test_a_failed_job_is_reported_in_full(driver: Driver) -> None:
    """R004-26 R004-28 R004-30: valid JSON with everything in it, and a retry strategy of its own."""
    await send_failures_to(driver)
    job = await running(driver, type="kit.mail", payload=b"\x00\xffnot json", key="schlüssel".encode())

    await settle_one(driver, Fail(job.lease, 'it "broke"\n', "timeout"))

    [failure] = await failure_jobs(driver)
    assert report_of(failure) == {
        "id": job.id,
        "type": "kit.mail",
        "queue": QUEUE,
        "key": "schlüssel",
        "payload": base64.b64encode(b"\x00\xffnot json").decode(),
        "error": 'it "broke"\n',
        "failure_kind": "timeout",
        "attempts": 1,
        "stalls": 0,
    }
    check_id(failure.id)
    assert (failure.type, failure.state, failure.run_at) == (FAILURE_TYPE, JobState.READY, None)
    assert (failure.max_attempts, failure.max_stalls) == (100, 3)
    assert (failure.min_backoff, failure.max_backoff) == (10 * SECOND, 15 * MINUTE)
    assert (failure.attempts, failure.stalls, failure.key, failure.created_at) == (0, 0, None, START)
    assert await state_of(driver, job.id) is JobState.FAILED, "the dead letter is kept as well"


@pytest.mark.parametrize("key", [None, b"\xff\xfe", b"\0"])
async def test_a_key_of_any_bytes_leaves_valid_json(driver: Driver, key: bytes | None) -> None:
    """R004-28: a text, or null when there is no key."""
    await send_failures_to(driver)
    job = await running(driver, key=key)

    await settle_one(driver, Fail(job.lease, "a\0b\ud800"))

    [failure] = await failure_jobs(driver)
    assert isinstance(report_of(failure)["key"], str) == (key is not None)
    assert report_of(failure)["error"] == "a\ufffdb?"


async def test_the_first_failure_of_an_idle_queue_is_not_lost(driver: Driver) -> None:
    """R004-27 F07: the failure queue has never held a job, or holds none any more."""
    await send_failures_to(driver)
    for _ in range(2):
        job = await running(driver)
        await settle_one(driver, Fail(job.lease, "broken"))

        [failure] = [found for found in await failure_jobs(driver) if not found.state.is_terminal]
        taken = await reserve_one(driver, queues=(DEAD,))
        assert (taken.id, report_of(taken)["id"]) == (failure.id, job.id)
        await settle_one(driver, Ack(taken.lease))


async def test_stalls_that_are_used_up_are_reported_with_their_kind(driver: Driver) -> None:
    """R004-30 R004-33: by reclaim, by reserve and by the settlement."""
    await send_failures_to(driver)
    first = await running(driver, max_stalls=1)
    await driver.reclaim(now=START + LEASE)
    second = await running(driver, max_stalls=1)
    await reserve(driver, now=START + LEASE)
    third = await running(driver, max_stalls=1)
    await settle_one(driver, Stalled(third.lease, "signal 9"))

    reports = [report_of(failure) for failure in await failure_jobs(driver)]
    assert [(report["id"], report["failure_kind"]) for report in reports] == [
        (job.id, "stalled") for job in (first, second, third)
    ]
    assert [(report["attempts"], report["stalls"]) for report in reports] == [(0, 1)] * 3
    assert reports[2]["error"] == "signal 9"


async def test_no_other_end_is_a_failure(driver: Driver) -> None:
    """R004-26 H07: neither success nor retry nor cancel, also not a failure after a cancel request."""
    await send_failures_to(driver)
    await driver.enqueue(new_jobs(4), now=START)
    acked, retried, cancelled, requested = await reserve(driver, limit=4)
    await driver.cancel([requested.id], now=START)

    await driver.settle(
        [
            Ack(acked.lease),
            Retry(retried.lease, delay=MINUTE),
            Cancelled(cancelled.lease),
            Fail(requested.lease, "broken"),
        ],
        now=START,
    )

    assert await failure_jobs(driver) == []


async def test_without_a_failure_queue_the_dead_letter_is_all(driver: Driver) -> None:
    """R004-29: never set, or taken away."""
    await send_failures_to(driver)
    await send_failures_to(driver, None)
    job = await running(driver)

    await settle_one(driver, Fail(job.lease, "broken"))

    assert await driver.count(now=START) == {QUEUE: Counts(failed=1)}


async def test_the_failure_queue_of_the_harbor_serves_queues_without_their_own(driver: Driver) -> None:
    """R004-26: the queue's own setting wins."""
    await send_failures_to(driver, "kit-all-dead", EVERY_QUEUE)
    await send_failures_to(driver)
    own = await running(driver)
    other = await running(driver, queue=OTHER_QUEUE)
    await driver.settle([Fail(own.lease, "broken"), Fail(other.lease, "broken")], now=START)
    await reserve(driver, queues=(OTHER_QUEUE,))

    assert [report_of(job)["id"] for job in await failure_jobs(driver)] == [own.id]
    assert [report_of(job)["id"] for job in await failure_jobs(driver, "kit-all-dead")] == [other.id]


async def test_failure_jobs_are_exempt_from_enqueue_rates(driver: Driver) -> None:
    """R004-31: of their queue and of the harbor; and they spend nothing of them."""
    await send_failures_to(driver)
    await driver.enqueue(new_jobs(3), now=START)
    jobs = await reserve(driver, limit=3)
    rate = RateLimit(1, MINUTE)
    for queue in (DEAD, EVERY_QUEUE):
        await driver.configure_queue(QueueSettings(queue=queue, enqueue_rate=rate), now=START)

    await driver.settle([Fail(job.lease, "broken") for job in jobs], now=START)

    assert len(await failure_jobs(driver)) == 3
    await driver.enqueue([new_job(queue=DEAD)], now=START)


@pytest.mark.parametrize("queue", [DEAD, QUEUE], ids=["a queue of their own", "the same queue"])
async def test_a_failure_job_that_fails_goes_to_the_dead_letters_only(driver: Driver, queue: str) -> None:
    """R004-31: never a failure of a failure, even where a failure queue feeds itself."""
    await send_failures_to(driver, queue)
    await send_failures_to(driver, queue, DEAD)
    await send_failures_to(driver, queue, EVERY_QUEUE)
    job = await running(driver)
    await settle_one(driver, Fail(job.lease, "broken"))

    failure = await reserve_one(driver, queues=(queue,))
    await settle_one(driver, Fail(failure.lease, "broken too"))

    assert failure.type == FAILURE_TYPE
    assert await reserve(driver, queues=(DEAD, QUEUE), limit=10) == []
    assert sorted(await found_ids(driver)) == sorted([job.id, failure.id])
    assert {found.state for found in await find_all(driver)} == {JobState.FAILED}


async def test_every_failure_of_a_job_is_reported_once(driver: Driver) -> None:
    """I11: a repeat of the settlement reports nothing; a failure after a requeue does."""
    await send_failures_to(driver)
    job = await running(driver)
    await settle_one(driver, Fail(job.lease, "first"))
    await driver.settle([Fail(job.lease, "first")], now=START)
    assert len(await failure_jobs(driver)) == 1

    await driver.requeue([job.id], now=START)
    again = await reserve_one(driver)
    await settle_one(driver, Fail(again.lease, "second"))

    reports = [report_of(failure) for failure in await failure_jobs(driver)]
    assert [(report["id"], report["error"]) for report in reports] == [(job.id, "first"), (job.id, "second")]


async def test_the_failure_job_is_there_in_the_step_that_failed_the_job(driver: Driver) -> None:
    """R004-31: in the same exchange, with the follower of the key."""
    requires(driver, "atomic_across_queues")
    await send_failures_to(driver)
    job = await running(driver, key=b"key")
    follower = new_job(key=b"key")
    await driver.enqueue([follower], now=START)

    await settle_one(driver, Fail(job.lease, "broken"))

    assert await driver.count(now=START) == {QUEUE: Counts(failed=1, ready=1), DEAD: Counts(ready=1)}
    [failure] = await reserve(driver, queues=(DEAD,), lease_for=timedelta(hours=1))
    assert report_of(failure)["id"] == job.id
    assert [taken.id for taken in await reserve(driver)] == [follower.id]
