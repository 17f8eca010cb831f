"""Y89 to Y98: the answer that reports the end of a family. Each end is in exactly one of them."""

from __future__ import annotations

from datetime import datetime

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import FamilyEnd, Requeued, Resolution, Resolved, Settled
from taskharbor.errors import LeaseLost
from taskharbor.model.job import Lease, NewJob
from taskharbor.model.settlement import Ack, Fail
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MINUTE,
    START,
    WRONG_TOKEN,
    claim,
    enqueue_one,
    new_job,
    requires,
    reserve_one,
    row,
    settle_one,
)
from taskharbor.testing.conformance.parallel import Racer, in_threads
from taskharbor.testing.conformance.relatives import after, bound, children, group, store, take

Ends = tuple[FamilyEnd, ...]


async def carried_out(driver: Driver, now: datetime = START) -> Ends:
    """Carry out what is owed: what that ended."""
    ended: Ends = ()
    while (answer := await driver.promote(now=now)).count:
        ended += answer.ended
    return ended + answer.ended


async def acked(driver: Driver, *leases: Lease, now: datetime = START) -> Ends:
    """Complete these in one call: what the call ended."""
    answers = await driver.settle([Ack(lease) for lease in leases], now=now)
    assert {type(answer) for answer in answers} == {Settled}
    return tuple(end for answer in answers if isinstance(answer, Settled) for end in answer.ended)


def ids(ended: Ends) -> list[str]:
    return [end.id for end in ended]


def of(*jobs: NewJob) -> list[str]:
    return [job.id for job in jobs]


async def test_the_answer_to_the_last_child_reports_the_end_of_its_family(driver: Driver) -> None:
    """Y89: with its counts, its time and how it ended; the answers before it report nothing."""
    requires(driver, "workflows")
    root = group(type="order", tolerate=1)
    one, two, three = children(root, 3)
    await store(driver, root, one, two, three)
    taken = await take(driver, one, two, three)

    assert await acked(driver, taken[0].lease, now=START + MINUTE / 8) == ()
    failed = await settle_one(driver, Fail(taken[1].lease, "broken"), now=START + MINUTE / 8)
    assert failed.ended == ()
    [end] = await acked(driver, taken[2].lease, now=START + MINUTE / 4)
    assert (end.id, end.type, end.queue, end.state) == (root.id, "order", root.queue, JobState.COMPLETED)
    assert (end.seconds, end.kind, end.parent) == (15.0, None, None)
    assert (end.counts.total, end.counts.open, end.counts.failed) == (3, 0, 1)
    assert end.is_workflow
    assert not end.is_skipped
    assert not end.is_late
    assert await carried_out(driver, START + MINUTE / 4) == ()


async def test_plain_jobs_report_no_ends(driver: Driver) -> None:
    """Y89: nor do children that are not the last of their family."""
    requires(driver, "workflows")
    first = await enqueue_one(driver)
    one, two = await reserve_one(driver), await enqueue_one(driver)
    answer = await driver.exchange([Ack(one.lease)], claim(), now=START)
    [settled] = answer.settled
    [cancelled] = await driver.cancel([two.id], now=START)

    assert isinstance(settled, Settled)
    assert (first.ended, settled.ended, answer.ended, cancelled.ended) == ((), (), (), ())


async def test_families_that_end_with_each_other_are_reported_from_the_bottom_up(driver: Driver) -> None:
    """Y90: all of them in one answer, also in a call of many."""
    requires(driver, "workflows")
    root = group()
    middle = group(parent=root.id)
    low = group(parent=middle.id)
    kids = children(low, 3)
    await store(driver, root, middle, low, *kids)
    ended = await acked(driver, *[job.lease for job in await take(driver, *kids)])

    assert ids(ended) == of(low, middle, root)
    assert [end.parent for end in ended] == [middle.id, root.id, None]


async def test_a_refused_settlement_reports_nothing_and_hides_nothing(driver: Driver) -> None:
    """Y91: the last answer that is no error has the ends of a call."""
    requires(driver, "workflows")
    root = group()
    one, two = children(root, 2)
    await store(driver, root, one, two)
    first, second = [job.lease for job in await take(driver, one, two)]
    wrong = Lease(first.job_id, WRONG_TOKEN, first.fence, first.expires_at, first.worker_id, first.queue)
    answers = await driver.settle([Ack(first), Ack(second), Ack(wrong)], now=START)
    again = await driver.settle([Ack(second)], now=START)

    assert isinstance(answers[2], LeaseLost)
    assert isinstance(again[0], LeaseLost)
    assert [ids(answer.ended) for answer in answers if isinstance(answer, Settled)] == [[], of(root)]
    assert await carried_out(driver) == ()


async def test_what_is_over_as_it_is_stored_is_reported_by_the_enqueue(driver: Driver) -> None:
    """Y92: a group without children; a repeat of the call ends nothing."""
    requires(driver, "workflows")
    empty = group()
    [answer] = await driver.enqueue([empty], now=START)
    [again] = await driver.enqueue([empty], now=START)

    assert [(end.id, end.state, end.is_workflow) for end in answer.ended] == [
        (empty.id, JobState.COMPLETED, True)
    ]
    assert again.ended == ()


async def test_a_call_that_ends_the_last_work_of_a_family_reports_it(driver: Driver) -> None:
    """Y93: resolve, and the cancel of a family that only waits."""
    requires(driver, "workflows")
    with row("resolve"):
        root = group()
        gate = bound(parent=root.id, done_by="call")
        await store(driver, root, gate)
        [answer] = await driver.resolve([Resolution(id=gate.id, result=b"1")], now=START)
        [again] = await driver.resolve([Resolution(id=gate.id, result=b"1")], now=START)
        assert isinstance(answer, Resolved)
        assert isinstance(again, Resolved)
        assert (ids(answer.ended), again.ended) == (of(root), ())
    with row("cancel"):
        root = group()
        await store(driver, root, *children(root, 2))
        [cancelled] = await driver.cancel([root.id], now=START)
        ended = cancelled.ended + await carried_out(driver)
        assert [(end.id, end.state) for end in ended] == [(root.id, JobState.CANCELLED)]
        assert ended[0].counts.cancelled == 2


@pytest.mark.parametrize("way", ["reclaim", "reserve", "exchange"])
async def test_a_lease_that_runs_out_may_end_a_family(driver: Driver, way: str) -> None:
    """Y94: by the reclaim, or the claim that found it, and not once more with the job that was given up."""
    requires(driver, "workflows")
    root = group()
    [child] = children(root, 1, max_stalls=1)
    await store(driver, root, child)
    await take(driver, child)
    late = START + LEASE
    if way == "reclaim":
        [answer] = await driver.reclaim(now=late)
        ended = answer.ended
    elif way == "reserve":
        claimed = await driver.reserve(claim(), now=late)
        ended = claimed.ended + tuple(end for one in claimed.given_up for end in one.ended)
    else:
        exchanged = await driver.exchange([], claim(), now=late)
        ended = exchanged.ended + tuple(end for one in exchanged.given_up for end in one.ended)

    assert [(end.id, end.state, end.kind) for end in ended] == [(root.id, JobState.FAILED, "child_failed")]
    assert await carried_out(driver, late) == ()


@pytest.mark.parametrize("way", ["promote", "reserve", "exchange"])
async def test_a_missed_deadline_is_reported_by_the_call_that_finds_it(driver: Driver, way: str) -> None:
    """Y95: of a family, and of a job alone."""
    requires(driver, "workflows")
    root = group(within=MINUTE)
    alone = bound(within=MINUTE, run_at=START + HOUR)
    await store(driver, root, *children(root, 2, run_at=START + HOUR), alone)
    late = START + MINUTE
    ended: Ends = ()
    if way == "reserve":
        ended += (await driver.reserve(claim(), now=late)).ended
    elif way == "exchange":
        ended += (await driver.exchange([], claim(), now=late)).ended
    ended += await carried_out(driver, late)

    assert {(end.id, end.state, end.kind, end.is_late, end.is_workflow) for end in ended} == {
        (root.id, JobState.FAILED, "timeout", True, True),
        (alone.id, JobState.FAILED, "timeout", True, False),
    }
    assert len(ended) == 2
    assert (await driver.reserve(claim(), now=late)).ended == ()


async def test_jobs_that_are_skipped_are_reported(driver: Driver) -> None:
    """Y96: once each, however far the skip goes, and again if they are requeued and skipped again."""
    requires(driver, "workflows")
    root = group()
    [first] = children(root, 1)
    second = after(first)
    third = after(second)
    await store(driver, root, first, second, third)
    [taken] = await take(driver, first)
    answer = await settle_one(driver, Fail(taken.lease, "broken"))
    ended = answer.ended + await carried_out(driver)

    assert {(end.id, end.kind, end.is_skipped, end.is_workflow) for end in ended} == {
        (second.id, "skipped", True, False),
        (third.id, "skipped", True, False),
        (root.id, "child_failed", False, True),
    }
    assert len(ended) == 3
    [requeued] = await driver.requeue([second.id], now=START)
    assert isinstance(requeued, Requeued)
    ended = requeued.ended + await carried_out(driver)
    assert sorted(ids(ended)) == sorted(of(second, root))


async def test_a_large_stop_is_reported_once_by_the_call_that_completes_it(driver: Driver) -> None:
    """Y97: the cancel of 450 waiting children goes on behind its answer; meanwhile something is owed."""
    requires(driver, "workflows")
    root = group()
    await store(driver, root, *children(root, 450))
    assert (await driver.info()).owed == 0
    [answer] = await driver.cancel([root.id], now=START)
    answers = [answer.ended]
    assert (await driver.info()).owed > 0
    for _ in range(5):
        answers.append((await driver.reserve(claim(), now=START)).ended)
        answers.append((await driver.promote(100, now=START)).ended)
    ended = tuple(end for ends in answers for end in ends)

    assert [(end.id, end.counts.cancelled) for end in ended] == [(root.id, 450)]
    assert (await driver.info()).owed == 0


async def test_of_many_workers_exactly_one_gets_the_end(driver: Driver) -> None:
    """Y98: twenty handles end the last children of a family at one time."""
    requires(driver, "workflows")
    root = group()
    kids = children(root, 20)
    await store(driver, root, *kids)
    leases = [job.lease for job in await take(driver, *kids)]

    async def end(racer: Racer) -> Ends:
        return await acked(racer.driver, leases[racer.number])

    answers = await in_threads(driver, len(leases), end)
    ended = [one.id for ends in answers for one in ends] + ids(await carried_out(driver))

    assert ended == [root.id]


async def test_a_handler_with_children_is_reported_as_a_family(driver: Driver) -> None:
    """Y89: when its own work is the last of it, and not when a plain job ends."""
    requires(driver, "workflows")
    parent, plain = new_job(), new_job()
    [child] = children(parent, 1)
    await store(driver, parent, child, plain)
    own, below, alone = [job.lease for job in await take(driver, parent, child, plain)]

    assert await acked(driver, below, alone) == ()
    assert ids(await acked(driver, own)) == of(parent)
