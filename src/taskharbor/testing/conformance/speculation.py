"""Speculative copies: one more try beside a straggler, of which only an Ack can win."""

from __future__ import annotations

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Counts, Speculated
from taskharbor.errors import JobNotFound, NotAllowedInState
from taskharbor.model.job import NO_TIME, JobRecord
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import EVERY_QUEUE, QueueSettings, Retention
from taskharbor.model.settlement import Ack, Fail, Release
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    ENDS,
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    OTHER_WORKER,
    QUEUE,
    SECOND,
    START,
    UNKNOWN_ID,
    WORKER,
    enqueue_one,
    find_all,
    found_ids,
    get_one,
    in_state,
    reserve,
    reserve_one,
    running,
    settle_one,
    state_of,
    unchanged,
)


async def copy_of(driver: Driver, job: JobRecord) -> str:
    """Start a copy and give its id."""
    answer = await driver.speculate(job.id, now=START)
    assert isinstance(answer, Speculated), answer
    assert (answer.id, answer.at) == (job.id, START)
    return answer.copy_id


async def both_running(driver: Driver) -> tuple[JobRecord, JobRecord]:
    """(the original on one worker, its copy on another)"""
    original = await running(driver, lease_for=HOUR)
    await copy_of(driver, original)
    return original, await reserve_one(driver, worker_id=OTHER_WORKER, lease_for=HOUR)


async def test_a_copy_is_the_same_work_for_another_worker(driver: Driver) -> None:
    """R13 R003-38: a record of its own, linked to the original, with a higher fence."""
    original = await running(
        driver,
        type="kit.slow",
        payload=b"\x00work",
        headers={"a": "b"},
        priority=7,
        requires="gpu",
        timeout=9 * SECOND,
        idempotency_key=b"once",
    )

    copy_id = await copy_of(driver, original)
    copy = await reserve_one(driver, worker_id=OTHER_WORKER, lanes=("gpu",))

    assert (copy.id, copy.speculates_on) == (copy_id, original.id)
    assert copy.id != original.id
    for name in ("type", "queue", "payload", "headers", "priority", "requires", "timeout"):
        assert getattr(copy, name) == getattr(original, name), name
    assert copy.fence > original.fence
    assert (copy.token != original.token, copy.idempotency_key, copy.attempts) == (True, None, 0)


async def test_a_copy_is_never_handed_to_the_worker_of_the_original(driver: Driver) -> None:
    """R003-38: however often it asks; another worker gets it once."""
    original = await running(driver)
    copy_id = await copy_of(driver, original)

    assert await reserve(driver, worker_id=WORKER, limit=10) == []
    assert [job.id for job in await reserve(driver, worker_id=OTHER_WORKER, limit=10)] == [copy_id]
    assert await reserve(driver, worker_id="worker-c", limit=10) == []


async def test_a_copy_is_never_handed_to_the_next_worker_of_the_original(driver: Driver) -> None:
    """R003-38: the worker that runs the original now is excluded, too, not only the one of that time."""
    original = await running(driver)
    copy_id = await copy_of(driver, original)
    then = START + LEASE
    again = await reserve_one(driver, now=then, worker_id=OTHER_WORKER, lease_for=HOUR)
    assert again.id == original.id

    assert await reserve(driver, now=then, worker_id=OTHER_WORKER, limit=10) == []
    assert await reserve(driver, now=then, worker_id=WORKER, limit=10) == []
    assert [job.id for job in await reserve(driver, now=then, worker_id="worker-c", limit=10)] == [copy_id]


async def test_one_claim_never_takes_an_original_together_with_its_copy(driver: Driver) -> None:
    """R003-38: a copy whose original waits again, waits until the original runs again."""
    original = await running(driver)
    copy_id = await copy_of(driver, original)
    then = START + LEASE
    await driver.reclaim(now=then)

    taken = await reserve(driver, now=then, worker_id=OTHER_WORKER, limit=10, lease_for=HOUR)

    assert [job.id for job in taken] == [original.id]
    assert [job.id for job in await reserve(driver, now=then, worker_id="worker-c", limit=10)] == [copy_id]


async def test_a_copy_that_is_passed_over_hides_no_other_job(driver: Driver) -> None:
    """B16: the straggler's worker finds what is behind the copy."""
    original = await running(driver, priority=9)
    await copy_of(driver, original)
    plain = await enqueue_one(driver)

    assert [job.id for job in await reserve(driver, worker_id=WORKER, limit=10)] == [plain.id]


async def test_a_copy_has_the_place_of_its_original_in_the_line(driver: Driver) -> None:
    """R003-38: behind a backlog, or what was enqueued with the original, it would come too late to help."""
    original = await running(driver, lease_for=HOUR)
    later = START + SECOND
    backlog = [await enqueue_one(driver, now=instant) for instant in (START, later)]
    urgent = await enqueue_one(driver, now=later, priority=1)

    answer = await driver.speculate(original.id, now=START + MINUTE)
    assert isinstance(answer, Speculated)
    taken = await reserve(driver, now=START + MINUTE, worker_id=OTHER_WORKER, limit=10)

    assert [job.id for job in taken] == [urgent.id, answer.copy_id, *(job.id for job in backlog)]


async def test_copies_are_hidden_from_find_and_count(driver: Driver) -> None:
    """R05: waiting, running and over."""
    original = await running(driver, lease_for=HOUR)

    async def hidden() -> None:
        assert await found_ids(driver) == [original.id]
        assert (await driver.count(now=START))[QUEUE].total == 1

    copy_id = await copy_of(driver, original)
    await hidden()
    copy = await reserve_one(driver, worker_id=OTHER_WORKER)
    await hidden()
    await settle_one(driver, Fail(copy.lease, "broken"))
    await hidden()
    assert (await get_one(driver, copy_id)).speculates_on == original.id


async def test_a_copy_that_waits_for_a_time_is_never_counted(driver: Driver) -> None:
    """R05: not before that time, not at the very instant, not after it."""
    _, copy = await both_running(driver)
    due = START + SECOND
    await settle_one(driver, Release(copy.lease, delay=SECOND))

    for now in (START, due - MICROSECOND, due, due + MICROSECOND):
        assert await driver.count(now=now) == {QUEUE: Counts(running=1)}


# ------------------------------------------------------------------ when there is none


@pytest.mark.parametrize("state", [state for state in JobState if state is not JobState.RUNNING])
async def test_only_a_running_job_can_have_a_copy(driver: Driver, state: JobState) -> None:
    """R003-38: the refusal says in which state it is."""
    job = await in_state(driver, state)

    async with unchanged(driver, job.id):
        answer = await driver.speculate(job.id, now=START)

    assert isinstance(answer, NotAllowedInState), answer
    assert (answer.job_id, answer.state) == (job.id, state)


async def test_a_keyed_job_never_has_a_copy(driver: Driver) -> None:
    """R003-38: its key may run once only."""
    job = await running(driver, key=b"key")

    assert isinstance(await driver.speculate(job.id, now=START), NotAllowedInState)
    assert await reserve(driver, worker_id=OTHER_WORKER, limit=10) == []


async def test_a_job_has_one_copy_at_most_and_a_copy_none(driver: Driver) -> None:
    """R003-38: while the first lives, waiting or running."""
    original = await running(driver, lease_for=HOUR)
    copy_id = await copy_of(driver, original)

    assert isinstance(await driver.speculate(original.id, now=START), NotAllowedInState)
    await reserve_one(driver, worker_id=OTHER_WORKER)
    assert isinstance(await driver.speculate(original.id, now=START), NotAllowedInState)
    assert isinstance(await driver.speculate(copy_id, now=START), NotAllowedInState)
    assert await reserve(driver, worker_id="worker-c", limit=10) == []


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "without retention"])
@pytest.mark.parametrize("end", ["Fail", "Cancelled", "Stalled", "expired", "cancelled by hand"])
async def test_a_run_never_has_a_second_copy_however_the_first_ended(
    driver: Driver, end: str, keeps: bool
) -> None:
    """R003-38: a leader that took over a moment ago knows nothing of the first; the store does."""
    if not keeps:
        nothing = Retention(completed=NO_TIME, failed=NO_TIME, cancelled=NO_TIME)
        await driver.configure_queue(QueueSettings(queue=QUEUE, retention=nothing), now=START)
    original = await running(driver, lease_for=HOUR)
    await copy_of(driver, original)
    copy = await reserve_one(driver, worker_id=OTHER_WORKER, lease_for=MINUTE)
    if end == "expired":
        await driver.reclaim(now=START + MINUTE)
    elif end == "cancelled by hand":
        await driver.cancel([copy.id], now=START)
        await settle_one(driver, Ack(copy.lease))
    else:
        await settle_one(driver, ENDS[end](copy.lease))

    async with driver.another() as other_leader:
        answer = await other_leader.speculate(original.id, now=START + MINUTE)

    assert isinstance(answer, NotAllowedInState), answer
    assert await reserve(driver, now=START + MINUTE, worker_id="worker-c", limit=10) == []


async def test_the_next_run_of_a_job_may_have_a_copy_again(driver: Driver) -> None:
    """R003-38: one to a run, and not one to a job."""
    original = await running(driver)
    first = await copy_of(driver, original)
    await settle_one(driver, ENDS["Retry"](original.lease))
    again = await reserve_one(driver, now=START + HOUR, lease_for=HOUR)
    assert (again.id, await state_of(driver, first)) == (original.id, JobState.CANCELLED)

    second = await driver.speculate(original.id, now=START + HOUR)
    assert isinstance(second, Speculated)
    copy = await reserve_one(driver, now=START + HOUR, worker_id=OTHER_WORKER)

    assert (copy.id, copy.id != first) == (second.copy_id, True)
    assert isinstance(await driver.speculate(original.id, now=START + HOUR), NotAllowedInState)


async def test_no_copy_after_the_lease_is_over_or_a_cancel_was_requested(driver: Driver) -> None:
    """R003-38 E05: to the microsecond."""
    lapsed, cancelled, alive = [await running(driver) for _ in range(3)]
    await driver.cancel([cancelled.id], now=START)

    assert isinstance(await driver.speculate(lapsed.id, now=START + LEASE), NotAllowedInState)
    assert isinstance(await driver.speculate(cancelled.id, now=START), NotAllowedInState)
    assert isinstance(await driver.speculate(alive.id, now=START + LEASE - MICROSECOND), Speculated)


async def test_an_unknown_job_has_no_copy(driver: Driver) -> None:
    """N05: and the error says so."""
    assert isinstance(await driver.speculate(UNKNOWN_ID, now=START), JobNotFound)


# ------------------------------------------------------------------ limits


@pytest.mark.parametrize("queue", [QUEUE, EVERY_QUEUE])
async def test_a_copy_takes_a_place_of_max_running(driver: Driver, queue: str) -> None:
    """W01 R003-38: none free, no copy handed out."""
    original = await running(driver, lease_for=HOUR)
    await copy_of(driver, original)
    await driver.configure_queue(QueueSettings(queue=queue, max_running=1), now=START)
    assert await reserve(driver, worker_id=OTHER_WORKER, limit=10) == []

    await driver.configure_queue(QueueSettings(queue=queue, max_running=2), now=START)
    await enqueue_one(driver, priority=-1)

    assert len(await reserve(driver, worker_id=OTHER_WORKER, limit=10)) == 1
    assert await reserve(driver, worker_id=OTHER_WORKER, limit=10) == [], "original and copy fill it"


async def test_a_copy_spends_execute_budget_and_no_enqueue_budget(driver: Driver) -> None:
    """W11 R003-38: starting one is no enqueue; handing it out is an execution."""
    one_a_minute = RateLimit(1, MINUTE)
    two_a_minute = RateLimit(2, MINUTE)
    settings = QueueSettings(queue=QUEUE, enqueue_rate=two_a_minute, execute_rate=two_a_minute)
    await driver.configure_queue(settings, now=START)
    await driver.configure_queue(QueueSettings(queue=EVERY_QUEUE, enqueue_rate=two_a_minute), now=START)
    original = await running(driver, lease_for=HOUR)

    await copy_of(driver, original)
    await enqueue_one(driver, priority=-1)
    assert len(await reserve(driver, worker_id=OTHER_WORKER, limit=10, rate=one_a_minute)) == 1

    assert await reserve(driver, worker_id="worker-c", limit=10) == [], "two starts, and the copy was one"
    assert [job.state for job in await find_all(driver)] == [JobState.RUNNING, JobState.READY]
