"""Y01 to Y26: jobs that come after others."""

from __future__ import annotations

import asyncio

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query
from taskharbor.errors import BrokenBond, InvalidArgument
from taskharbor.model.bonds import Bonds
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MINUTE,
    OTHER_QUEUE,
    OTHER_WORKER,
    START,
    UNKNOWN_ID,
    find_all,
    get_one,
    new_job,
    new_jobs,
    requires,
    reserve,
    reserve_one,
    row,
    settle_one,
)
from taskharbor.testing.conformance.relatives import (
    ack,
    after,
    bound,
    end,
    fail,
    family,
    follow,
    group,
    ids,
    record,
    states,
    store,
    take,
)
from taskharbor.testing.conformance.wakeups import hint, listening, work_in

STATES = [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED]


async def test_without_the_capability_bonds_are_refused_and_nothing_is_stored(driver: Driver) -> None:
    """A driver that does not declare `workflows` says so instead of storing half of it."""
    if driver.capabilities.workflows:
        pytest.skip("this driver declares workflows")
    first = new_job()
    for name, jobs in (("after", [first, after(first)]), ("group", [group()])):
        with row(name), pytest.raises(InvalidArgument, match="workflows"):
            await driver.enqueue(jobs, now=START)
    with pytest.raises(InvalidArgument, match="workflows"):
        await driver.find(Query(parent=UNKNOWN_ID), now=START)

    assert await find_all(driver) == []


async def test_a_job_waits_until_the_one_before_it_has_completed(driver: Driver) -> None:
    """Y01 Y02: after one, and after the last of three."""
    requires(driver, "workflows")
    first, others = new_job(), new_jobs(2)
    next_, last = after(first), after(first, *others)

    assert await store(driver, first, *others, next_, last) == ["created"] * 3 + ["blocked"] * 2
    assert [(await family(driver, job)).waits_for for job in (next_, last)] == [1, 3]
    taken = await take(driver, first, *others)
    for job in taken:
        assert await states(driver, last) == ["blocked"]
        await settle_one(driver, Ack(job.lease))
    await follow(driver)

    assert await states(driver, next_, last) == ["ready", "ready"]
    await ack(driver, next_, last)


async def test_a_job_after_completed_ones_is_ready_at_once(driver: Driver) -> None:
    """Y03: and after one that failed or was cancelled it is skipped at once (Y04)."""
    requires(driver, "workflows")
    for state, result in zip(STATES, ["ready", "cancelled", "cancelled"], strict=True):
        with row(state):
            first = new_job()
            await store(driver, first)
            await end(driver, first, state)
            late = after(first)

            assert await store(driver, late) == ["created"]
            assert await states(driver, late) == [result]
            assert len(await reserve(driver, limit=10)) == (result == "ready")


async def test_a_job_is_skipped_when_one_before_it_fails_or_is_cancelled(driver: Driver) -> None:
    """Y05 Y06 Y04: as soon as one did, with the reason."""
    requires(driver, "workflows")
    for state in STATES[1:]:
        with row(state):
            first, other = new_job(type="pack"), new_job(run_at=START + HOUR)
            last = after(first, other)
            await store(driver, first, other, last)
            await end(driver, first, state)
            skipped = await record(driver, last)

            assert (skipped.state, skipped.failure_kind) == (JobState.CANCELLED, "skipped")
            assert skipped.last_error == f"skipped: pack {state}"
            assert skipped.finished_at == START


async def test_a_skip_goes_on_down_a_chain(driver: Driver) -> None:
    """Y07: of ten."""
    requires(driver, "workflows")
    chain = [new_job()]
    for _ in range(10):
        chain.append(after(chain[-1]))
    await store(driver, *chain)
    await fail(driver, chain[0])

    assert await states(driver, *chain) == ["failed", *["cancelled"] * 10]
    assert {(await record(driver, job)).failure_kind for job in chain[1:]} == {"skipped"}


async def test_over_and_failure_run_after_a_failure(driver: Driver) -> None:
    """Y08 Y09 Y10: `failure` is skipped when all completed, `over` runs in any case."""
    requires(driver, "workflows")
    for state, runs in ((JobState.FAILED, "ready"), (JobState.COMPLETED, "cancelled")):
        with row(state):
            first = new_job()
            over, failure = after(first, when="over"), after(first, when="failure")
            await store(driver, first, over, failure)
            await end(driver, first, state)

            assert await states(driver, over, failure) == ["ready", runs]
            await reserve(driver, limit=10)


async def test_failure_waits_for_all_and_not_for_the_first(driver: Driver) -> None:
    """Y11: and so does `over`."""
    requires(driver, "workflows")
    one, two = new_jobs(2)
    failure, over = after(one, two, when="failure"), after(one, two, when="over")
    await store(driver, one, two, failure, over)
    first, second = await take(driver, one, two)
    await driver.fail(one.id, first.token or "", START, "broken")
    await follow(driver)
    assert await states(driver, failure, over) == ["blocked", "blocked"]
    await settle_one(driver, Ack(second.lease))
    await follow(driver)

    assert await states(driver, failure, over) == ["ready", "ready"]


async def test_a_retry_of_the_one_before_releases_nobody(driver: Driver) -> None:
    """Y12: a retry is no end."""
    requires(driver, "workflows")
    first = new_job()
    last = after(first, when="over")
    await store(driver, first, last)
    [taken] = await take(driver, first)
    await settle_one(driver, Retry(taken.lease, reason="again"))
    await follow(driver)

    assert await states(driver, first, last) == ["ready", "blocked"]
    await ack(driver, first)
    assert await states(driver, last) == ["ready"]


async def test_one_that_stalls_out_counts_as_failed(driver: Driver) -> None:
    """Y13 Y14: and one that is reclaimed with a cancel request counts as cancelled."""
    requires(driver, "workflows")
    stalls, stopped = new_job(type="stalls", max_stalls=1), new_job(type="stopped")
    skipped, last = after(stalls), after(stopped)
    await store(driver, stalls, stopped, skipped, last)
    await take(driver, stalls, stopped)
    await driver.cancel([stopped.id], now=START)
    late = START + LEASE
    await driver.reclaim(now=late)
    await follow(driver, now=late)

    assert await states(driver, stalls, stopped) == ["failed", "cancelled"]
    assert (await record(driver, skipped)).last_error == "skipped: stalls failed"
    assert (await record(driver, last)).last_error == "skipped: stopped cancelled"


async def test_the_win_of_a_copy_counts_as_completed(driver: Driver) -> None:
    """Y15: the original is completed by it."""
    requires(driver, "workflows")
    first = bound()
    last = after(first)
    await store(driver, first, last)
    await take(driver, first)
    await driver.speculate(first.id, now=START)
    copy = await reserve_one(driver, worker_id=OTHER_WORKER)
    await settle_one(driver, Ack(copy.lease))
    await follow(driver)

    assert await states(driver, first, last) == ["completed", "ready"]


async def test_a_released_job_still_waits_for_its_time(driver: Driver) -> None:
    """Y16 Y17: its run_at, lane, priority and place stay."""
    requires(driver, "workflows")
    first = new_job()
    timed = after(first, run_at=START + MINUTE)
    early, later = after(first, priority=5, requires="gpu"), after(first, priority=5, requires="gpu")
    between = new_job(priority=5, requires="gpu")
    await store(driver, first, timed, early)
    await store(driver, between, later)
    await ack(driver, first)

    assert await states(driver, timed) == ["scheduled"]
    taken = await reserve(driver, limit=10, lanes=("gpu",))
    assert [job.id for job in taken] == list(ids([early, between, later]))
    assert await states(driver, timed, now=START + MINUTE) == ["ready"]


async def test_a_job_released_into_a_paused_queue_waits(driver: Driver) -> None:
    """Y18 Y26: an edge may lead from one queue to another."""
    requires(driver, "workflows")
    first = new_job()
    last = after(first, queue=OTHER_QUEUE)
    await driver.configure_queue(QueueSettings(queue=OTHER_QUEUE, paused=True), now=START)
    await store(driver, first, last)
    await ack(driver, first)

    assert await states(driver, last) == ["ready"]
    assert await reserve(driver, queues=(OTHER_QUEUE,)) == []
    await driver.configure_queue(QueueSettings(queue=OTHER_QUEUE, paused=False), now=START)
    assert (await reserve_one(driver, queues=(OTHER_QUEUE,))).id == last.id


async def test_a_release_wakes_a_waiting_worker(driver: Driver) -> None:
    """Y19: as any job that becomes ready does."""
    requires(driver, "workflows")
    first = new_job()
    last = after(first, queue=OTHER_QUEUE)
    await store(driver, first, last)
    async with listening(driver, OTHER_QUEUE) as wakeups:
        waiting = asyncio.ensure_future(hint(wakeups, work_in(OTHER_QUEUE)))
        await ack(driver, first)

        assert (await waiting).queue in (OTHER_QUEUE, None)


async def test_a_job_comes_after_a_thousand_others_at_most(driver: Driver) -> None:
    """Y20: 1,001 are refused."""
    requires(driver, "workflows")
    many = new_jobs(1000)
    last = after(*many)
    await store(driver, *many, last)
    with pytest.raises(InvalidArgument, match="1000 are allowed"):
        await store(driver, bound(after=(*ids(many), last.id)))
    taken = await reserve(driver, limit=1000)
    await driver.settle([Ack(job.lease) for job in taken[1:]], now=START)
    await follow(driver)
    assert (await family(driver, last)).waits_for == 1
    await settle_one(driver, Ack(taken[0].lease))
    await follow(driver)

    assert await states(driver, last) == ["ready"]


async def test_2500_dependents_are_released_in_parts_and_none_is_lost(driver: Driver) -> None:
    """Y21: the settle itself releases a hundred at most.

    So many take three calls that carry out a thousand. Ten thousand take the same path four times as long.
    """
    requires(driver, "workflows")
    first = new_job()
    many = [after(first) for _ in range(2500)]
    await store(driver, first, *many)
    [taken] = await take(driver, first)
    await settle_one(driver, Ack(taken.lease))

    assert (await driver.count(now=START))["kit"].ready <= 100
    await follow(driver)
    assert (await driver.count(now=START))["kit"].ready == 2500


async def test_the_cancel_of_a_dependent_leaves_the_one_before_it(driver: Driver) -> None:
    """Y22: which goes on as if it were alone."""
    requires(driver, "workflows")
    first = new_job()
    last = after(first)
    await store(driver, first, last)
    await driver.cancel([last.id], now=START)

    assert await states(driver, first, last) == ["ready", "cancelled"]
    await ack(driver, first)
    assert await states(driver, last) == ["cancelled"]


async def test_bonds_that_cannot_be_are_refused_and_nothing_is_stored(driver: Driver) -> None:
    """Y23 Y50: forward references, strangers, keyed and unknown jobs, a key beside bonds."""
    requires(driver, "workflows")
    root, other, keyed = group(), bound(done_by="call"), new_job(key=b"key")
    child = bound(parent=root.id)
    await store(driver, root, child, other, keyed)
    first, second = new_job(), new_job()
    ahead = bound(after=(second.id,))
    itself = new_job()
    itself = bound(id=itself.id, after=(itself.id,))
    refused = {
        "forward": ([first, ahead, second], InvalidArgument),
        "itself": ([itself], InvalidArgument),
        "a child of the next": ([bound(parent=second.id), second], InvalidArgument),
        "twice": ([first, bound(after=(first.id, first.id))], InvalidArgument),
        "key": ([first, new_job(key=b"k", bonds=Bonds(after=(first.id,)))], InvalidArgument),
        "idempotency key of a child": ([bound(parent=root.id, idempotency_key=b"k")], InvalidArgument),
        "no sibling": ([first, bound(parent=root.id, after=(first.id,))], BrokenBond),
        "child of another": ([bound(parent=other.id, after=(child.id,))], BrokenBond),
        "unknown": ([first, bound(after=(UNKNOWN_ID,))], BrokenBond),
        "after a key": ([first, bound(after=(keyed.id,))], BrokenBond),
        "child of a key": ([first, bound(parent=keyed.id)], BrokenBond),
    }
    there = await find_all(driver)
    for name, (jobs, error) in refused.items():
        with row(name), pytest.raises(error):
            await driver.enqueue(jobs, now=START)

    assert await find_all(driver) == there


async def test_a_known_id_is_a_duplicate_though_the_one_before_it_is_gone(driver: Driver) -> None:
    """Y24: its bonds are not looked at."""
    requires(driver, "workflows")
    first = new_job()
    last = after(first)
    await store(driver, first, last)
    await ack(driver, first)
    await ack(driver, last)
    await driver.delete([first.id], now=START)

    assert await states(driver, first) == ["gone"]
    assert await store(driver, last) == ["duplicate"]


async def test_edges_are_shown_in_the_record(driver: Driver) -> None:
    """Y26: bonds come back as they were stored, a span as an instant."""
    requires(driver, "workflows")
    root = group()
    first, last = bound(parent=root.id), bound(parent=root.id, within=HOUR)
    await store(driver, root, first, last, child := after(first, when="over", optional=True))
    found = await get_one(driver, child.id)

    assert found.bonds == child.bonds
    assert (found.root, (await record(driver, root)).root) == (root.id, None)
    assert (await record(driver, last)).bonds == Bonds(parent=root.id, deadline=START + HOUR)
