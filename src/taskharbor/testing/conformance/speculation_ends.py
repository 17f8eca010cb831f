"""Who wins, a job or its copy, and what ends both."""

from __future__ import annotations

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import CancelResult, Counts
from taskharbor.errors import JobNotInflight
from taskharbor.model.job import NO_TIME
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Fail, Settlement
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    ENDS,
    HOUR,
    LEASE,
    OTHER_WORKER,
    QUEUE,
    SECOND,
    START,
    WORKER,
    found_ids,
    get_one,
    refused,
    reserve,
    reserve_one,
    running,
    settle_one,
    state_of,
    unchanged,
)
from taskharbor.testing.conformance.speculation import both_running, copy_of


async def test_the_ack_of_a_copy_completes_the_original(driver: Driver) -> None:
    """R003-38: in one step, with the copy's result."""
    original, copy = await both_running(driver)

    answer = await settle_one(driver, Ack(copy.lease, b"by the copy"))

    record = await get_one(driver, original.id)
    assert answer.state is JobState.COMPLETED
    assert (record.state, record.result, record.finished_at) == (JobState.COMPLETED, b"by the copy", START)
    assert (record.worker_id, record.lease_expires_at) == (None, None)
    assert (record.attempts, record.stalls, record.version) == (0, 0, original.version + 1)
    assert record.settled_token != original.token, "the loser must not take it for its own success"
    assert await driver.count(now=START) == {QUEUE: Counts(completed=1)}


@pytest.mark.parametrize("end", ENDS)
async def test_the_original_is_refused_after_its_copy_won(driver: Driver, end: str) -> None:
    """R003-38: any settlement and any extension; the result stays."""
    original, copy = await both_running(driver)
    await settle_one(driver, Ack(copy.lease, b"by the copy"))

    async with unchanged(driver, original.id):
        assert isinstance(await refused(driver, ENDS[end](original.lease)), JobNotInflight)
        [answer] = await driver.extend_leases([original.lease], HOUR, now=START)

    assert isinstance(answer, JobNotInflight)


@pytest.mark.parametrize("is_running", [False, True], ids=["waiting", "running"])
@pytest.mark.parametrize("end", ENDS)
async def test_any_settlement_of_the_original_ends_the_copy(
    driver: Driver, end: str, is_running: bool
) -> None:
    """R003-38: whether the copy waits or runs."""
    original = await running(driver, lease_for=HOUR)
    copy_id = await copy_of(driver, original)
    copy = await reserve_one(driver, worker_id=OTHER_WORKER) if is_running else None

    settled = await settle_one(driver, ENDS[end](original.lease))

    assert await state_of(driver, copy_id) is JobState.CANCELLED
    if copy is not None:
        async with unchanged(driver, original.id, copy_id):
            assert isinstance(await refused(driver, Ack(copy.lease, b"late")), JobNotInflight)
    assert await state_of(driver, original.id) is settled.state
    claimable = {job.id for job in await reserve(driver, worker_id="worker-c", limit=10)}
    assert copy_id not in claimable


@pytest.mark.parametrize("is_running", [False, True], ids=["waiting", "running"])
async def test_the_copy_ends_with_an_original_that_is_forgotten_at_once(
    driver: Driver, is_running: bool
) -> None:
    """R05 R003-38: retention zero takes the record in the same step, and its copy is over too."""
    nothing = QueueSettings(queue=QUEUE, retention=Retention(completed=NO_TIME))
    await driver.configure_queue(nothing, now=START)
    original = await running(driver, lease_for=HOUR)
    copy_id = await copy_of(driver, original)
    copy = await reserve_one(driver, worker_id=OTHER_WORKER) if is_running else None

    await settle_one(driver, Ack(original.lease))

    assert await driver.get([original.id], now=START) == [None]
    assert await state_of(driver, copy_id) is JobState.CANCELLED
    if copy is not None:
        assert isinstance(await refused(driver, Ack(copy.lease, b"late")), JobNotInflight)
    assert await reserve(driver, worker_id="worker-c", limit=10) == []


@pytest.mark.parametrize("end", [name for name in ENDS if name != "Ack"])
async def test_any_other_end_of_the_copy_leaves_the_original_alone(driver: Driver, end: str) -> None:
    """R003-38: it runs on as if nothing had been."""
    original, copy = await both_running(driver)
    before = await get_one(driver, original.id)

    await settle_one(driver, ENDS[end](copy.lease))

    assert await get_one(driver, original.id) == before
    await settle_one(driver, Ack(original.lease, b"by itself"))
    assert (await get_one(driver, original.id)).result == b"by itself"


async def test_an_expired_copy_ends_alone(driver: Driver) -> None:
    """G09: its stall is not the original's."""
    original = await running(driver, lease_for=HOUR)
    await copy_of(driver, original)
    copy = await reserve_one(driver, worker_id=OTHER_WORKER, lease_for=SECOND)
    before = await get_one(driver, original.id)

    await driver.reclaim(now=START + SECOND)

    assert await get_one(driver, original.id) == before
    assert isinstance(await refused(driver, Ack(copy.lease), now=START + SECOND), JobNotInflight)
    assert await reserve(driver, now=START + SECOND, worker_id="worker-c", limit=10) == []


async def test_a_failed_copy_makes_no_failure_job(driver: Driver) -> None:
    """F01: only jobs fail; a copy is a try."""
    await driver.configure_queue(QueueSettings(queue=QUEUE, fail_queue="kit-dead"), now=START)
    _, copy = await both_running(driver)

    await settle_one(driver, Fail(copy.lease, "broken"))

    assert await reserve(driver, queues=("kit-dead",)) == []
    assert await found_ids(driver, states=(JobState.FAILED,)) == []


@pytest.mark.parametrize("first", ["original", "copy"])
async def test_of_two_acks_in_one_call_the_first_wins(driver: Driver, first: str) -> None:
    """D12: items of a call apply in order."""
    original, copy = await both_running(driver)
    acks: dict[str, Settlement] = {
        "original": Ack(original.lease, b"original"),
        "copy": Ack(copy.lease, b"copy"),
    }
    order = [acks.pop(first), *acks.values()]

    won, lost = await driver.settle(order, now=START)

    assert isinstance(lost, JobNotInflight)
    assert not isinstance(won, JobNotInflight)
    assert (await get_one(driver, original.id)).result == first.encode()


@pytest.mark.parametrize("is_running", [False, True], ids=["waiting", "running"])
async def test_cancel_ends_both(driver: Driver, is_running: bool) -> None:
    """H04 H05: the copy at once, the original as soon as its worker settles."""
    original = await running(driver, lease_for=HOUR)
    copy_id = await copy_of(driver, original)
    copy = await reserve_one(driver, worker_id=OTHER_WORKER) if is_running else None

    [answer] = await driver.cancel([original.id], now=START)

    assert answer.result is CancelResult.REQUESTED
    assert await state_of(driver, copy_id) is JobState.CANCELLED
    if copy is not None:
        assert isinstance(await refused(driver, Ack(copy.lease, b"late")), JobNotInflight)
    assert await reserve(driver, worker_id=OTHER_WORKER, limit=10) == []
    settled = await settle_one(driver, Ack(original.lease, b"late"))
    assert settled.state is JobState.CANCELLED


async def test_a_copy_outlives_the_reclaim_of_its_original_and_can_still_win(driver: Driver) -> None:
    """G01: the original waits again, and the copy's Ack completes it."""
    original = await running(driver)
    await copy_of(driver, original)
    copy = await reserve_one(driver, worker_id=OTHER_WORKER, lease_for=HOUR)
    then = START + LEASE
    [reclaimed] = await driver.reclaim(now=then)
    assert reclaimed.id == original.id

    await settle_one(driver, Ack(copy.lease, b"by the copy"), now=then)

    record = await get_one(driver, original.id, now=then)
    assert (record.state, record.result, record.stalls) == (JobState.COMPLETED, b"by the copy", 1)
    assert await reserve(driver, now=then, limit=10) == []


async def test_a_copy_that_wins_over_a_waiting_original_without_retention_leaves_nothing_in_the_line(
    driver: Driver,
) -> None:
    """R08 G01: it is not counted as ready any more, and no worker gets it."""
    await driver.configure_queue(
        QueueSettings(queue=QUEUE, retention=Retention(completed=NO_TIME)), now=START
    )
    original = await running(driver)
    await copy_of(driver, original)
    copy = await reserve_one(driver, worker_id=OTHER_WORKER, lease_for=HOUR)
    then = START + LEASE
    await driver.reclaim(now=then)

    await settle_one(driver, Ack(copy.lease), now=then)

    assert await driver.get([original.id], now=then) == [None]
    assert (await driver.count([QUEUE], now=then))[QUEUE].total == 0
    assert await reserve(driver, now=then, limit=10) == []


async def test_a_copy_can_win_over_the_next_run_of_its_original(driver: Driver) -> None:
    """D04: the worker that runs it now is refused."""
    original = await running(driver)
    await copy_of(driver, original)
    copy = await reserve_one(driver, worker_id=OTHER_WORKER, lease_for=HOUR)
    then = START + LEASE
    again = await reserve_one(driver, now=then, worker_id=WORKER)
    assert again.id == original.id

    await settle_one(driver, Ack(copy.lease, b"by the copy"), now=then)

    assert isinstance(await refused(driver, Ack(again.lease, b"late"), now=then), JobNotInflight)
    assert (await get_one(driver, original.id, now=then)).result == b"by the copy"


async def test_a_reclaim_that_fails_the_original_ends_the_copy(driver: Driver) -> None:
    """G09: it is over, so there is nothing left to win."""
    original = await running(driver, max_stalls=1)
    copy_id = await copy_of(driver, original)

    await driver.reclaim(now=START + LEASE)

    assert await state_of(driver, copy_id, now=START + LEASE) is JobState.CANCELLED
    assert await reserve(driver, now=START + LEASE, worker_id=OTHER_WORKER, limit=10) == []


async def test_copies_are_pruned_with_their_job(driver: Driver) -> None:
    """R07: nothing hidden is left behind."""
    original, copy = await both_running(driver)
    await settle_one(driver, Ack(copy.lease))
    later = START + 1000 * HOUR

    while await driver.prune(now=later):
        pass

    assert await driver.get([original.id, copy.id], now=later) == [None, None]
