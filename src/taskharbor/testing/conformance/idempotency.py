"""Idempotency keys: a repeat returns the first job and changes nothing, until 24 hours after its end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import EnqueueResult
from taskharbor.errors import InvalidArgument
from taskharbor.model.job import Update
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    OTHER_QUEUE,
    QUEUE,
    START,
    enqueue_one,
    found_ids,
    get_one,
    in_state,
    new_job,
    requires,
    reserve_one,
    running,
    settle_one,
    state_of,
    unchanged,
)
from taskharbor.testing.conformance.relatives import ack, children, group, store

DAY = timedelta(hours=24)
CREATED, DUPLICATE = EnqueueResult.CREATED, EnqueueResult.DUPLICATE


async def test_a_repeat_returns_the_first_job(driver: Driver) -> None:
    """M01 M02: created once, a duplicate ever after."""
    answers = [await enqueue_one(driver, idempotency_key=b"once", payload=b"same") for _ in range(5)]

    assert [answer.result for answer in answers] == [CREATED] + [DUPLICATE] * 4
    assert {answer.id for answer in answers} == {answers[0].id}
    assert await found_ids(driver) == [answers[0].id]


async def test_the_scope_of_an_idempotency_key_is_its_queue(driver: Driver) -> None:
    """M03 R001-26: another queue is another job."""
    first = await enqueue_one(driver, idempotency_key=b"once")

    second = await enqueue_one(driver, idempotency_key=b"once", queue=OTHER_QUEUE)

    assert (second.result, second.id != first.id) == (CREATED, True)


async def test_a_repeat_with_other_content_changes_nothing(driver: Driver) -> None:
    """M04: type, payload, run_at, priority, lane and key of the repeat are not looked at."""
    first = await enqueue_one(driver, idempotency_key=b"once", payload=b"first")

    async with unchanged(driver, first.id):
        answer = await enqueue_one(
            driver,
            now=START + MINUTE,
            idempotency_key=b"once",
            type="kit.other",
            payload=b"second",
            run_at=START + HOUR,
            priority=9,
            requires="gpu",
            key=b"key",
            update=Update(),
        )

    assert (answer.id, answer.result, answer.version) == (first.id, DUPLICATE, first.version)


@pytest.mark.parametrize("state", JobState)
async def test_a_repeat_is_one_whatever_became_of_the_first(driver: Driver, state: JobState) -> None:
    """M05: waiting, running or over."""
    if state is JobState.BLOCKED:
        await running(driver, key=b"key")
        first = (await enqueue_one(driver, idempotency_key=b"once", key=b"key")).id
    else:
        first = (await in_state(driver, state, idempotency_key=b"once")).id

    async with unchanged(driver, first):
        answer = await enqueue_one(driver, idempotency_key=b"once")

    assert (answer.id, answer.result) == (first, DUPLICATE)


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED])
@pytest.mark.parametrize("key", [None, b"key"])
async def test_a_key_is_forgotten_24_hours_after_the_end(
    driver: Driver, state: JobState, key: bytes | None
) -> None:
    """M06: to the microsecond, with or without a prune in between, for jobs with and without a key."""
    fields = {"idempotency_key": b"once", "key": key}
    first = await in_state(driver, state, idempotency_key=b"once")

    early = await enqueue_one(driver, now=START + DAY - MICROSECOND, **fields)
    assert (early.id, early.result) == (first.id, DUPLICATE)
    late = await enqueue_one(driver, now=START + DAY, **fields)

    assert (late.result, late.id != first.id) == (CREATED, True)
    again = await enqueue_one(driver, now=START + DAY, **fields)
    assert (again.id, again.result) == (late.id, DUPLICATE)


async def test_the_key_of_a_root_is_forgotten_24_hours_after_the_end(driver: Driver) -> None:
    """M06 Y43: to the microsecond, as that of any other job; then the same call stores another family."""
    requires(driver, "workflows")
    first, early, late = [group(idempotency_key=b"once") for _ in range(3)]
    [child] = children(first, 1)
    await store(driver, first, child)
    await ack(driver, child)

    assert await store(driver, early, *children(early, 1), now=START + DAY - MICROSECOND) == ["duplicate"] * 2
    assert await store(driver, late, *children(late, 1), now=START + DAY) == ["blocked", "created"]


async def test_a_key_outlives_its_record(driver: Driver) -> None:
    """M06 AM62: the record is pruned after an hour, the key holds for the day."""
    first = await in_state(driver, JobState.COMPLETED, idempotency_key=b"once")

    assert await driver.prune(now=START + 2 * HOUR) == 1
    assert await driver.get([first.id], now=START) == [None]
    answer = await enqueue_one(driver, now=START + 3 * HOUR, idempotency_key=b"once")

    assert (answer.id, answer.result) == (first.id, DUPLICATE)
    await driver.prune(now=START + DAY)
    assert (await enqueue_one(driver, now=START + DAY, idempotency_key=b"once")).result is CREATED


@pytest.mark.parametrize("how", ["retention zero", "delete"])
async def test_a_key_outlives_a_record_that_went_at_once(driver: Driver, how: str) -> None:
    """M06: also when nothing of the job is kept."""
    if how == "retention zero":
        nothing = Retention(completed=timedelta(0))
        await driver.configure_queue(QueueSettings(queue=QUEUE, retention=nothing), now=START)
    job = await running(driver, idempotency_key=b"once")
    await settle_one(driver, Ack(job.lease))
    if how == "delete":
        await driver.delete([job.id], now=START)

    answer = await enqueue_one(driver, idempotency_key=b"once")

    assert await driver.get([job.id], now=START) == [None]
    assert (answer.id, answer.result) == (job.id, DUPLICATE)


async def test_the_same_job_sent_again_after_it_was_forgotten(driver: Driver) -> None:
    """M06: as a client repeats a call whose answer was lost: the key still knows the id."""
    job = new_job(idempotency_key=b"once")
    await driver.enqueue([job], now=START)
    taken = await reserve_one(driver)
    await settle_one(driver, Ack(taken.lease))
    await driver.delete([job.id], now=START)

    [early] = await driver.enqueue([job], now=START + DAY - MICROSECOND)
    [late] = await driver.enqueue([job], now=START + DAY)
    other = await enqueue_one(driver, now=START + DAY, idempotency_key=b"once")

    assert (early.id, early.result, early.version) == (job.id, DUPLICATE, 0)
    assert (late.id, late.result) == (job.id, CREATED)
    assert (other.id, other.result) == (job.id, DUPLICATE)


async def test_a_requeued_job_keeps_its_key_until_its_next_end(driver: Driver) -> None:
    """M06: the day counts from the end that came last."""
    job = await in_state(driver, JobState.FAILED, idempotency_key=b"once")
    await driver.requeue([job.id], now=START + 23 * HOUR)

    answer = await enqueue_one(driver, now=START + 30 * HOUR, idempotency_key=b"once")
    assert (answer.id, answer.result) == (job.id, DUPLICATE)
    again = await reserve_one(driver, now=START + 30 * HOUR)
    await settle_one(driver, Ack(again.lease), now=START + 30 * HOUR)

    end = START + 30 * HOUR + DAY
    assert (await enqueue_one(driver, now=end - MICROSECOND, idempotency_key=b"once")).result is DUPLICATE
    assert (await enqueue_one(driver, now=end, idempotency_key=b"once")).result is CREATED


async def test_a_requeue_does_not_bring_back_a_key_that_was_just_forgotten(driver: Driver) -> None:
    """M06: at the very instant at which its day is over, the key is free for good."""
    job = await in_state(driver, JobState.FAILED, idempotency_key=b"once")

    await driver.requeue([job.id], now=START + DAY)

    answer = await enqueue_one(driver, now=START + DAY, idempotency_key=b"once")
    assert (answer.result, answer.id != job.id) == (CREATED, True)


@pytest.mark.parametrize("fields", [{}, {"payload": b"other", "run_at": START + HOUR, "type": "kit.other"}])
async def test_a_known_id_is_a_duplicate_whatever_it_brings(driver: Driver, fields: dict[str, Any]) -> None:
    """M07 M08 AM57: a running job is not harmed by a second enqueue of its id."""
    job = await running(driver, payload=b"first")

    async with unchanged(driver, job.id):
        answer = await enqueue_one(driver, id=job.id, **fields)

    assert (answer.id, answer.result, answer.version) == (job.id, DUPLICATE, job.version)
    await settle_one(driver, Ack(job.lease))


async def test_a_known_id_is_known_in_every_queue(driver: Driver) -> None:
    """M07: an id is unique for ever, not per queue."""
    first = await enqueue_one(driver)

    answer = await enqueue_one(driver, id=first.id, queue=OTHER_QUEUE)

    assert (answer.id, answer.result) == (first.id, DUPLICATE)
    assert (await get_one(driver, first.id)).queue == QUEUE


async def test_repeats_inside_one_call_are_duplicates(driver: Driver) -> None:
    """M02 A14: the first of the list is the job, by key and by id."""
    first, second = new_job(idempotency_key=b"once"), new_job(idempotency_key=b"once")

    answers = await driver.enqueue([first, second, first], now=START)

    assert [answer.result for answer in answers] == [CREATED, DUPLICATE, DUPLICATE]
    assert {answer.id for answer in answers} == {first.id}
    assert await driver.get([second.id], now=START) == [None]


@pytest.mark.parametrize("other", [b"Once", b"once ", b" once", b"once\0", b"onc", b"\xffonce"])
async def test_keys_are_compared_byte_by_byte(driver: Driver, other: bytes) -> None:
    """M09: case, space and length are significant."""
    await enqueue_one(driver, idempotency_key=b"once")

    assert (await enqueue_one(driver, idempotency_key=other)).result is CREATED


@pytest.mark.parametrize("key", [b"k" * 255, b"\0", bytes(range(255))])
async def test_a_key_of_1_to_255_bytes_is_taken(driver: Driver, key: bytes) -> None:
    """M10: and works."""
    first = await enqueue_one(driver, idempotency_key=key)

    assert (await enqueue_one(driver, idempotency_key=key)).id == first.id
    assert (await get_one(driver, first.id)).idempotency_key == key


@pytest.mark.parametrize("key", [b"", b"k" * 256])
async def test_any_other_length_is_refused(driver: Driver, key: bytes) -> None:
    """M10: nothing is stored."""
    with pytest.raises(InvalidArgument):
        await enqueue_one(driver, idempotency_key=key)

    assert await found_ids(driver) == []


async def test_jobs_without_a_key_are_never_the_same(driver: Driver) -> None:
    """M01: no key dedupes nothing."""
    answers = [await enqueue_one(driver, payload=b"same") for _ in range(3)]

    assert len({answer.id for answer in answers}) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", b"b.c"), ("a.b", b"c")),
        (("a", b"b:c"), ("a", b"b")),
        (("a", b"-b"), ("a-", b"b")),
        (("a", b"/b"), ("a", b"%2Fb")),
        (("a", b"{b}"), ("a", b"b")),
        (("a", b"b\0c"), ("a", b"b")),
    ],
)
async def test_no_separator_makes_two_keys_collide(
    driver: Driver, one: tuple[str, bytes], other: tuple[str, bytes]
) -> None:
    """M13 C22: queue and key are never glued together and taken apart."""
    for queue, key in (one, other):
        assert (await enqueue_one(driver, queue=queue, idempotency_key=key)).result is CREATED
        assert (await enqueue_one(driver, queue=queue, key=key)).result is CREATED


async def test_the_idempotency_key_is_looked_at_before_the_key(driver: Driver) -> None:
    """M05 K01: a repeat of a running job is a duplicate, not a blocked job."""
    job = await running(driver, key=b"key", idempotency_key=b"once")

    answer = await enqueue_one(driver, key=b"key", idempotency_key=b"once")

    assert (answer.id, answer.result) == (job.id, DUPLICATE)
    assert await found_ids(driver) == [job.id]


async def test_the_key_of_an_absorbed_job_answers_with_the_job_that_absorbed_it(driver: Driver) -> None:
    """M01 K16: it entered once, as an update."""
    first = await enqueue_one(driver, key=b"key", payload=b"first")
    updated = await enqueue_one(driver, key=b"key", idempotency_key=b"once", payload=b"second")
    assert updated.result is EnqueueResult.UPDATED

    async with unchanged(driver, first.id):
        answer = await enqueue_one(driver, key=b"key", idempotency_key=b"once", payload=b"third")

    assert (answer.id, answer.result) == (first.id, DUPLICATE)


async def test_the_key_of_a_merged_job_answers_with_the_job_it_was_merged_into(driver: Driver) -> None:
    """M01 R004-24: the blocked id is gone, its idempotency key is not."""
    job = await running(driver, key=b"key")
    await enqueue_one(driver, key=b"key", idempotency_key=b"once")
    await settle_one(driver, Retry(job.lease, reason="broken"))

    answer = await enqueue_one(driver, idempotency_key=b"once")

    assert (answer.id, answer.result) == (job.id, DUPLICATE)
    assert await state_of(driver, job.id) is JobState.READY


async def test_a_reclaim_does_not_touch_the_key(driver: Driver) -> None:
    """M05 G01: the job lives on."""
    job = await running(driver, idempotency_key=b"once")
    await driver.reclaim(now=START + LEASE)

    answer = await enqueue_one(driver, now=START + LEASE, idempotency_key=b"once")

    assert (answer.id, answer.result) == (job.id, DUPLICATE)
