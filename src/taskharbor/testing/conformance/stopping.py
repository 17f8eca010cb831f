"""Y52 to Y70: families that are stopped, run again, and are forgotten."""

from __future__ import annotations

from datetime import timedelta

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import CancelResult, Deleted, Requeued, Resolution
from taskharbor.errors import BrokenBond, NotAllowedInState
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Fail, Park
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    START,
    new_job,
    requires,
    reserve,
    row,
    settle_one,
)
from taskharbor.testing.conformance.relatives import (
    ack,
    after,
    bound,
    children,
    counts,
    end,
    fail,
    follow,
    group,
    record,
    states,
    store,
    take,
)


async def test_the_cancel_of_a_root_stops_its_family(driver: Driver) -> None:
    """Y52: what waits is cancelled, what runs is asked to stop; the root is cancelled at the end."""
    requires(driver, "workflows")
    root = group()
    waits, runs, timed = children(root, 3)
    below = bound(parent=root.id, done_by="children")
    [leaf] = children(below, 1, run_at=START + HOUR)
    await store(driver, root, runs, below, leaf)
    [running] = await take(driver, runs)
    await store(driver, waits, timed)
    [answer] = await driver.cancel([root.id], now=START)
    await follow(driver)

    assert (answer.result, answer.state) == (CancelResult.REQUESTED, JobState.BLOCKED)
    assert await states(driver, waits, timed, below, leaf) == ["cancelled"] * 4
    assert {(await record(driver, job)).failure_kind for job in (waits, below, leaf)} == {"stopped"}
    assert (await record(driver, runs)).cancel_requested
    await settle_one(driver, Ack(running.lease))
    await follow(driver)
    assert await states(driver, root, runs) == ["cancelled", "cancelled"]


async def test_the_cancel_of_a_small_waiting_family_is_over_at_once(driver: Driver) -> None:
    """Y52: when none runs and none is spared."""
    requires(driver, "workflows")
    root = group()
    kids = children(root, 20)
    await store(driver, root, *kids)
    [answer] = await driver.cancel([root.id], now=START)

    assert (answer.result, answer.state) == (CancelResult.CANCELLED, JobState.CANCELLED)
    assert await states(driver, root, *kids) == ["cancelled"] * 21
    [again] = await driver.cancel([root.id], now=START)
    assert again.result is CancelResult.ALREADY_OVER


async def test_a_large_family_is_stopped_in_parts_and_none_is_handed_out(driver: Driver) -> None:
    """Y53 Y54: from the answer on, of 2,500."""
    requires(driver, "workflows")
    root = group()
    await store(driver, root, *children(root, 2500))
    [answer] = await driver.cancel([root.id], now=START)

    assert answer.result is CancelResult.REQUESTED
    assert await reserve(driver, limit=1000) == []
    await follow(driver)
    assert await states(driver, root) == ["cancelled"]
    assert (await driver.count(now=START))[QUEUE].cancelled == 2501


async def test_a_stop_spares_what_runs_in_any_case(driver: Driver) -> None:
    """Y55 Y56: as `finally` does; a second cancel takes it."""
    requires(driver, "workflows")
    for name in ("spared", "taken"):
        with row(name):
            root = group()
            [first] = children(root, 1)
            finally_ = after(first, when="over")
            await store(driver, root, first, finally_)
            await driver.cancel([root.id], now=START)
            await follow(driver)
            assert await states(driver, root, first, finally_) == ["blocked", "cancelled", "ready"]
            if name == "taken":
                await driver.cancel([root.id], now=START)
                await follow(driver)
                assert await states(driver, finally_) == ["cancelled"]
            else:
                await ack(driver, finally_)
            assert await states(driver, root) == ["cancelled"]


async def test_the_cancel_of_one_child_leaves_its_siblings(driver: Driver) -> None:
    """Y57: those that come after it are skipped."""
    requires(driver, "workflows")
    root = group()
    one, two = children(root, 2)
    next_ = after(one)
    await store(driver, root, one, two, next_)
    await driver.cancel([one.id], now=START)
    await follow(driver)

    assert await states(driver, root, two, next_) == ["blocked", "ready", "cancelled"]
    await ack(driver, two)
    assert await states(driver, root) == ["completed"]


async def test_fail_fast_stops_the_others(driver: Driver) -> None:
    """Y58 Y59: an ack that came before its stop was known stays, and each is counted once."""
    requires(driver, "workflows")
    root = group(fail_fast=True, tolerate=1)
    broken, worse, runs, waits = children(root, 4)
    await store(driver, root, broken, worse, runs)
    first, second, running = [job.lease for job in await take(driver, broken, worse, runs)]
    await store(driver, waits)
    await settle_one(driver, Fail(first, "x"))
    await follow(driver)
    assert await states(driver, waits) == ["ready"]
    answers = await driver.settle([Fail(second, "x"), Ack(running)], now=START)
    await follow(driver)

    assert [answer.state for answer in answers] == [JobState.FAILED, JobState.COMPLETED]
    assert await states(driver, root, runs, waits) == ["failed", "completed", "cancelled"]
    assert (await record(driver, waits)).failure_kind == "stopped"
    assert (await record(driver, root)).failure_kind == "child_failed"
    assert await counts(driver, root) == (4, 0, 2, 0, 1)


async def test_a_success_does_not_stop_a_family_that_is_retried(driver: Driver) -> None:
    """Y58: `fail_fast` acts when a failure is counted; one that was counted before stops nothing again."""
    requires(driver, "workflows")
    root = group(fail_fast=True)
    broken, worse = children(root, 2)
    await store(driver, root, broken, worse)
    leases = [job.lease for job in await take(driver, broken, worse)]
    await driver.settle([Fail(lease, "x") for lease in leases], now=START)
    await follow(driver)
    assert await counts(driver, root) == (2, 0, 2, 0, 0)
    await driver.requeue([broken.id], now=START)
    next_, slow = children(root, 2)
    await store(driver, next_, slow)
    first, second, third = await take(driver, broken, next_, slow)
    await settle_one(driver, Ack(first.lease))
    await follow(driver)

    assert not (await record(driver, slow)).cancel_requested
    await settle_one(driver, Fail(second.lease, "x"))
    await follow(driver)
    assert (await record(driver, slow)).cancel_requested
    await settle_one(driver, Ack(third.lease))
    await follow(driver)
    assert (await record(driver, root)).failure_kind == "child_failed"


async def test_a_deadline_ends_what_is_not_over(driver: Driver) -> None:
    """Y60: waiting, running, parked, and a root with its children."""
    requires(driver, "workflows")
    runs, parks = bound(within=HOUR), bound(within=HOUR)
    await store(driver, runs, parks)
    running, parked = await take(driver, runs, parks, lease_for=2 * HOUR)
    [awaited] = children(parks, 1, run_at=START + 4 * HOUR)
    waits, root, quick = bound(within=HOUR), group(within=HOUR), bound(within=HOUR)
    await store(driver, quick)
    await ack(driver, quick)
    [child] = children(root, 1)
    await store(driver, awaited, waits, root, child)
    await settle_one(driver, Park(parked.lease, (awaited.id,)))
    late = START + HOUR
    await follow(driver, now=late - timedelta(microseconds=1))
    assert (await states(driver, waits, root)) == ["ready", "blocked"]
    await follow(driver, now=late)

    for job in (waits, root, parks):
        over = await record(driver, job, now=late)
        assert (over.state, over.failure_kind) == (JobState.FAILED, "timeout")
    assert await states(driver, quick, awaited, child) == ["completed", "cancelled", "cancelled"]
    assert (await record(driver, runs, now=late)).cancel_requested
    await settle_one(driver, Ack(running.lease), now=late)
    over = await record(driver, runs, now=late)
    assert (over.state, over.failure_kind) == (JobState.FAILED, "timeout")


async def test_past_its_deadline_a_job_is_neither_handed_out_nor_resolved(driver: Driver) -> None:
    """Y61: swept or not."""
    requires(driver, "workflows")
    job, event = bound(within=MINUTE), bound(done_by="call", within=MINUTE)
    await store(driver, job, event)
    late = START + MINUTE
    [answer] = await driver.resolve([Resolution(id=event.id, result=b"yes")], now=late)

    assert isinstance(answer, NotAllowedInState)
    assert await reserve(driver, limit=10, now=late) == []


async def test_a_requeued_child_opens_its_parents_again(driver: Driver) -> None:
    """Y62 Y63: up to the root; they end again, and what was released before is not released twice."""
    requires(driver, "workflows")
    top = group(within=HOUR)
    middle = bound(parent=top.id, done_by="children")
    kept, broken = children(middle, 2)
    then, failed = after(top, when="over"), after(top, when="failure")
    await store(driver, top, middle, kept, broken, then, failed)
    one, two = await take(driver, kept, broken)
    await driver.settle([Ack(one.lease), Fail(two.lease, "x")], now=START)
    await follow(driver)
    assert await states(driver, top, middle, then, failed) == ["failed", "failed", "ready", "ready"]
    await ack(driver, then, failed)
    [answer] = await driver.requeue([broken.id], now=START)

    assert isinstance(answer, Requeued)
    assert await states(driver, top, middle, broken) == ["blocked", "blocked", "ready"]
    assert await counts(driver, middle) == (2, 1, 0, 0, 0)
    reopened = await record(driver, top)
    assert (reopened.failure_kind, reopened.finished_at) == (None, None)
    assert reopened.bonds is not None
    assert reopened.bonds.deadline is None
    await ack(driver, broken)
    assert await states(driver, top, middle) == ["completed", "completed"]
    assert [(await record(driver, job)).starts for job in (then, failed)] == [1, 1]


async def test_a_requeued_job_looks_again_at_what_it_comes_after(driver: Driver) -> None:
    """Y64: it is blocked by one that is not over, and skipped after one that failed."""
    requires(driver, "workflows")
    root = group()
    [first] = children(root, 1)
    last = after(first)
    await store(driver, root, first, last)
    await fail(driver, first)
    assert await states(driver, root, last) == ["failed", "cancelled"]
    [skipped] = await driver.requeue([last.id], now=START)
    assert isinstance(skipped, Requeued)
    assert (skipped.state, await states(driver, root)) == (JobState.CANCELLED, ["failed"])
    await driver.requeue([first.id], now=START)
    [blocked] = await driver.requeue([last.id], now=START)
    assert isinstance(blocked, Requeued)
    assert blocked.state is JobState.BLOCKED
    await ack(driver, first)
    await ack(driver, last)

    assert await states(driver, root, first, last) == ["completed"] * 3


async def test_a_requeued_job_that_can_never_run_is_skipped_though_others_are_open(driver: Driver) -> None:
    """Y64: one that it comes after has failed, the other is not over."""
    requires(driver, "workflows")
    bad, open_ = new_job(), new_job(run_at=START + HOUR)
    last = after(bad, open_)
    await store(driver, bad, open_, last)
    await fail(driver, bad)
    [answer] = await driver.requeue([last.id], now=START)

    assert isinstance(answer, Requeued)
    assert answer.state is JobState.CANCELLED


async def test_a_parent_that_was_cancelled_while_it_waited_ends_again(driver: Driver) -> None:
    """Y62 Y63: when a child of it was requeued and is over; what the parent came after ended meanwhile."""
    requires(driver, "workflows")
    first = new_job(run_at=START + MINUTE)
    for done_by, verdict in (("children", "completed"), ("worker", "cancelled")):
        with row(done_by):
            parent = after(first, done_by=done_by)
            [child] = children(parent, 1)
            await store(driver, *([] if done_by == "worker" else [first]), parent, child)
            await ack(driver, child)
            await driver.cancel([parent.id], now=START)
            assert await states(driver, parent) == ["cancelled"]
            await driver.requeue([child.id], now=START)
            assert await states(driver, parent) == ["blocked"]
            await ack(driver, child)
            assert await states(driver, parent) == [verdict]


async def test_a_requeue_below_a_stop_and_of_a_join_is_refused(driver: Driver) -> None:
    """Y65 Y66: a join has no work of its own to repeat."""
    requires(driver, "workflows")
    root = group()
    over, runs = children(root, 2)
    await store(driver, root, over)
    await end(driver, over, JobState.FAILED)
    await driver.requeue([over.id], now=START)
    await store(driver, runs)
    first, _ = await take(driver, over, runs)
    await settle_one(driver, Fail(first.lease, "x"))
    await driver.cancel([root.id], now=START)
    await follow(driver)
    [answer] = await driver.requeue([over.id], now=START)
    assert isinstance(answer, BrokenBond)

    empty = group()
    await store(driver, empty)
    [join] = await driver.requeue([empty.id], now=START)
    assert isinstance(join, NotAllowedInState)


async def test_a_child_is_pruned_with_its_root_and_before_it(driver: Driver) -> None:
    """Y67 Y69: never more than asked for; one that a live job comes after is kept."""
    requires(driver, "workflows")
    settings = QueueSettings(queue=QUEUE, retention=Retention(completed=MINUTE))
    await driver.configure_queue(settings, now=START)
    root, first = group(), new_job()
    kids = children(root, 3)
    last = after(first, run_at=START + 3 * HOUR)
    await store(driver, first, last)
    await ack(driver, first)
    await store(driver, root, *kids)
    one, two, three = await take(driver, *kids)
    await driver.settle([Ack(one.lease), Ack(two.lease)], now=START)
    late = START + HOUR
    await driver.extend_leases([three.lease], 2 * HOUR, now=START)
    assert await driver.prune(now=late) == 0
    await settle_one(driver, Ack(three.lease), now=late)
    later = late + MINUTE
    assert await driver.prune(2, now=later) == 2
    assert await states(driver, root) == ["completed"]
    assert await driver.prune(now=later) == 2

    assert await states(driver, root, *kids) == ["gone"] * 4
    assert await states(driver, first, last, now=later) == ["completed", "scheduled"]


async def test_prune_keeps_its_limit_among_families_and_plain_jobs(driver: Driver) -> None:
    """Y67: a family counts with all its jobs."""
    requires(driver, "workflows")
    settings = QueueSettings(queue=QUEUE, retention=Retention(completed=MINUTE))
    await driver.configure_queue(settings, now=START)
    families = [group() for _ in range(3)]
    kids = [children(root, 3) for root in families]
    plain = [new_job() for _ in range(3)]
    for root, mine, job in zip(families, kids, plain, strict=True):
        await store(driver, root, *mine, job)
        await ack(driver, *mine, job)
    pruned = []
    while number := await driver.prune(5, now=START + MINUTE):
        pruned.append(number)

    assert max(pruned) <= 5
    assert sum(pruned) == 15
    jobs = [*families, *(kid for mine in kids for kid in mine), *plain]
    assert await states(driver, *jobs) == ["gone"] * 15


async def test_without_retention_children_go_and_their_counts_stay(driver: Driver) -> None:
    """Y68: unless a job comes after them."""
    requires(driver, "workflows")
    settings = QueueSettings(queue=QUEUE, retention=Retention(completed=timedelta(0)))
    await driver.configure_queue(settings, now=START)
    root = group()
    one, two, named = children(root, 3)
    last = after(named, run_at=START + HOUR)
    await store(driver, root, one, two, named, last)
    taken = await take(driver, one, two, named)
    await driver.settle([Ack(job.lease) for job in taken], now=START)
    await follow(driver)

    assert await states(driver, one, two, named, root) == ["gone", "gone", "completed", "blocked"]
    assert await counts(driver, root) == (4, 1, 0, 0, 0)


async def test_what_a_family_needs_is_not_deleted(driver: Driver) -> None:
    """Y70: a child of a live parent, and a parent with children."""
    requires(driver, "workflows")
    root = group()
    one, two = children(root, 2)
    await store(driver, root, one, two)
    first, second = await take(driver, one, two)
    await settle_one(driver, Ack(first.lease))
    [of_live] = await driver.delete([one.id], now=START)
    assert isinstance(of_live, BrokenBond)
    await settle_one(driver, Ack(second.lease))
    [with_children] = await driver.delete([root.id], now=START)
    assert isinstance(with_children, BrokenBond)
    answers = await driver.delete([one.id, two.id, root.id], now=START)

    assert all(isinstance(answer, Deleted) for answer in answers)


async def test_a_lost_worker_of_a_stopped_family_does_not_hold_it(driver: Driver) -> None:
    """Y52: its lease runs out, and the family is over."""
    requires(driver, "workflows")
    root = group()
    kids = children(root, 2)
    await store(driver, root, *kids)
    await take(driver, *kids)
    await driver.cancel([root.id], now=START)
    late = START + LEASE
    await driver.reclaim(now=late)
    await follow(driver, now=late)

    assert await states(driver, root, *kids) == ["cancelled"] * 3
