"""Y27 to Y51: parents and their children."""

from __future__ import annotations

import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query
from taskharbor.drivers.unclaimed import unclaimed
from taskharbor.errors import BrokenBond, InvalidArgument, LeaseLost, NotAllowedInState
from taskharbor.model.bonds import Bonds
from taskharbor.model.job import Lease
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueSettings
from taskharbor.model.settlement import Ack, Fail, Park, Stalled
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    LEASE,
    MINUTE,
    OTHER_QUEUE,
    QUEUE,
    START,
    UNKNOWN_ID,
    WRONG_TOKEN,
    find_all,
    found_ids,
    get_one,
    new_job,
    refused,
    requires,
    reserve,
    reserve_one,
    row,
    settle_one,
)
from taskharbor.testing.conformance.parallel import Racer, in_threads
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
    ids,
    record,
    states,
    store,
    take,
)


async def test_a_parent_is_over_with_its_last_child(driver: Driver) -> None:
    """Y27: it acks first, is blocked meanwhile, and completes with its own result."""
    requires(driver, "workflows")
    parent = new_job()
    one, two = children(parent, 2)
    await store(driver, parent, one, two)
    lease, first, second = [job.lease for job in await take(driver, parent, one, two)]

    assert (await settle_one(driver, Ack(lease, b"mine"))).state is JobState.BLOCKED
    await settle_one(driver, Ack(first))
    assert await states(driver, parent) == ["blocked"]
    await settle_one(driver, Ack(second))
    await follow(driver)
    over = await record(driver, parent)
    assert (over.state, over.result, over.finished_at) == (JobState.COMPLETED, b"mine", START)


async def test_a_parent_whose_children_are_over_completes_at_its_ack(driver: Driver) -> None:
    """Y28: with its own result."""
    requires(driver, "workflows")
    parent = new_job()
    [child] = children(parent, 1)
    await store(driver, parent, child)
    lease, first = [job.lease for job in await take(driver, parent, child)]
    await settle_one(driver, Ack(first))

    assert (await settle_one(driver, Ack(lease, b"mine"))).state is JobState.COMPLETED
    assert (await record(driver, parent)).result == b"mine"


async def test_a_group_is_over_with_its_last_child_and_at_once_without_one(driver: Driver) -> None:
    """Y29 Y30: a group has no work of its own."""
    requires(driver, "workflows")
    root, empty = group(), group()
    [child] = children(root, 1)

    assert await store(driver, root, child, empty) == ["blocked", "created", "created"]
    assert await states(driver, root, empty) == ["blocked", "completed"]
    await ack(driver, child)
    assert await states(driver, root) == ["completed"]


async def test_the_family_is_counted(driver: Driver) -> None:
    """Y31 Y49: total, open, failed, excused, cancelled; a count is no new version of the parent."""
    requires(driver, "workflows")
    root = group(tolerate=None)
    done, broken, excused, stopped, open_ = (
        bound(parent=root.id, optional=number == 2) for number in range(5)
    )
    await store(driver, root, done, broken, excused, stopped, open_)
    before = (await record(driver, root)).version
    leases = [job.lease for job in await take(driver, done, broken, excused, stopped, open_)]
    await driver.settle([Ack(leases[0]), Fail(leases[1], "x"), Fail(leases[2], "x")], now=START)
    await driver.cancel([stopped.id], now=START)
    await settle_one(driver, Ack(leases[3]))
    await follow(driver)

    assert await counts(driver, root) == (5, 1, 1, 1, 1)
    assert (await record(driver, root)).version == before


async def test_failed_children_fail_their_parent(driver: Driver) -> None:
    """Y32 Y33 Y34 Y35: more than it tolerates, with kind and text; optional, cancelled and skipped do not."""
    requires(driver, "workflows")
    rows = {
        "one": (0, ["failed", "completed"], JobState.FAILED),
        "one of one tolerated": (1, ["failed", "completed"], JobState.COMPLETED),
        "two of one tolerated": (1, ["failed", "failed"], JobState.FAILED),
        "any": (None, ["failed", "failed"], JobState.COMPLETED),
        "cancelled": (0, ["cancelled", "completed"], JobState.COMPLETED),
    }
    for name, (tolerate, ends, state) in rows.items():
        with row(name):
            root = group(tolerate=tolerate)
            kids = children(root, len(ends))
            await store(driver, root, *kids)
            taken = await take(driver, *kids)
            for job, how in zip(taken, ends, strict=True):
                if how == "cancelled":
                    await driver.cancel([job.id], now=START)
                await settle_one(driver, Fail(job.lease, "x") if how == "failed" else Ack(job.lease))
            await follow(driver)
            over = await record(driver, root)
            assert over.state is state
            if state is JobState.FAILED:
                named = ", ".join(ids(kids)[: ends.count("failed")])
                assert over.failure_kind == "child_failed"
                assert over.last_error == f"{ends.count('failed')} of 2 children failed: {named}"


async def test_the_failure_of_an_optional_child_is_excused(driver: Driver) -> None:
    """Y34: and releases as success does. A skipped child does not fail its parent (Y35)."""
    requires(driver, "workflows")
    root = group()
    first = bound(parent=root.id, optional=True)
    last = after(first)
    never = after(first, when="failure")
    await store(driver, root, first, last, never)
    await fail(driver, first)

    assert await states(driver, last, never) == ["ready", "cancelled"]
    await ack(driver, last)
    assert await states(driver, root) == ["completed"]


async def test_the_own_failure_of_a_parent_stops_its_children(driver: Driver) -> None:
    """Y36: and it ends failed with its own error; so does one that stalls out."""
    requires(driver, "workflows")
    for name in ("fail", "stall"):
        with row(name):
            parent = new_job(max_stalls=1)
            waits, runs = children(parent, 2)
            await store(driver, parent, runs)
            lease, running = [job.lease for job in await take(driver, parent, runs)]
            await store(driver, waits)
            how = Fail(lease, "my own") if name == "fail" else Stalled(lease, "my own")
            assert (await settle_one(driver, how)).state is JobState.BLOCKED
            await follow(driver)

            stopped = await record(driver, waits)
            assert (stopped.state, stopped.failure_kind) == (JobState.CANCELLED, "stopped")
            assert (await record(driver, runs)).cancel_requested
            await settle_one(driver, Ack(running))
            await follow(driver)
            over = await record(driver, parent)
            assert (over.state, over.last_error) == (JobState.FAILED, "my own")
            assert await counts(driver, parent) == (2, 0, 0, 0, 2)


async def test_three_levels_end_upwards_in_one_step(driver: Driver) -> None:
    """Y37: without a promote."""
    requires(driver, "workflows")
    top, middle = group(), group()
    middle = bound(id=middle.id, parent=top.id, done_by="children")
    [leaf] = children(middle, 1)
    await store(driver, top, middle, leaf)
    [taken] = await take(driver, leaf)
    await settle_one(driver, Ack(taken.lease))

    assert await states(driver, top, middle) == ["completed", "completed"]


async def test_a_family_is_sixteen_levels_deep_at_most(driver: Driver) -> None:
    """Y38: in one call and in several."""
    requires(driver, "workflows")
    line = [group()]
    for _ in range(16):
        line.append(bound(parent=line[-1].id, done_by="call"))
    await store(driver, *line)
    deepest = await record(driver, line[-1])

    assert deepest.root == line[0].id
    for jobs in ([bound(parent=line[-1].id)], [line[-1], bound(parent=line[-1].id)]):
        with pytest.raises(InvalidArgument, match="levels"):
            await driver.enqueue([job for job in jobs if job is not line[-1]], now=START)


async def test_a_parent_that_is_over_stopping_or_unknown_takes_no_children(driver: Driver) -> None:
    """Y39: and nothing of such a call is stored."""
    requires(driver, "workflows")
    over, stopping = group(), group()
    [running] = children(stopping, 1)
    await store(driver, over, stopping, running)
    await take(driver, running)
    await driver.cancel([stopping.id], now=START)
    there = len(await find_all(driver))
    for name, parent_id in (("over", over.id), ("stopping", stopping.id), ("unknown", UNKNOWN_ID)):
        with row(name), pytest.raises(BrokenBond):
            await store(driver, new_job(), bound(parent=parent_id))

    assert len(await find_all(driver)) == there


async def test_a_child_is_added_before_or_after_the_last_one_ends(driver: Driver) -> None:
    """Y40: first the add: not over; first the end: refused."""
    requires(driver, "workflows")
    root = group()
    first, second, third = children(root, 3)
    await store(driver, root, first)
    [taken] = await take(driver, first)
    await store(driver, second)
    await settle_one(driver, Ack(taken.lease))
    assert await states(driver, root) == ["blocked"]
    await ack(driver, second)

    with pytest.raises(BrokenBond, match="over"):
        await store(driver, third)


async def test_twenty_handles_end_the_last_children_at_once(driver: Driver) -> None:
    """Y41: the parent is over once, and its callback is released once."""
    requires(driver, "workflows")
    root = group()
    kids = children(root, 20)
    then = after(root)
    await store(driver, root, *kids, then)
    leases = [job.lease for job in await take(driver, *kids)]

    async def ends(racer: Racer) -> None:
        await settle_one(racer.driver, Ack(leases[racer.number]))

    await in_threads(driver, len(leases), ends)
    await follow(driver)

    assert await states(driver, root, then) == ["completed", "ready"]
    assert (await record(driver, root)).version == 2
    assert (await record(driver, then)).version == 2


async def test_a_stale_settlement_counts_nothing(driver: Driver) -> None:
    """Y42: a child that stalled and ran again is counted once."""
    requires(driver, "workflows")
    root = group()
    [child] = children(root, 1)
    await store(driver, root, child)
    [first] = await take(driver, child)
    late = START + LEASE
    [second] = await take(driver, child, now=late)
    await refused(driver, Ack(first.lease), now=late)
    assert await counts(driver, root) == (1, 1, 0, 0, 0)
    await settle_one(driver, Ack(second.lease), now=late)
    await refused(driver, Ack(second.lease), now=late)

    assert await counts(driver, root) == (1, 0, 0, 0, 0)


async def test_the_repeat_of_a_whole_call_is_a_duplicate(driver: Driver) -> None:
    """Y43 Y44: by ids, and by the idempotency key of the root, whose children have other ids then."""
    requires(driver, "workflows")
    root = group(idempotency_key=b"once")
    kids = children(root, 2)
    await store(driver, root, *kids)
    assert await store(driver, root, *kids) == ["duplicate"] * 3

    again = group(idempotency_key=b"once")
    others = children(again, 2)
    assert await store(driver, again, *others, after(others[0])) == ["duplicate"] * 4
    assert await states(driver, *others) == ["gone"] * 2
    assert await counts(driver, root) == (2, 2, 0, 0, 0)


async def test_children_are_added_under_a_lease_that_holds(driver: Driver) -> None:
    """Y45: of the parent or of a sibling; expired, wrong and foreign ones are refused."""
    requires(driver, "workflows")
    parent, stranger = new_job(), new_job()
    first, second, third = children(parent, 3)
    await store(driver, parent, stranger)
    mine, foreign = [job.lease for job in await take(driver, parent, stranger)]
    assert await store(driver, first, by=mine) == ["created"]
    [sibling] = await take(driver, first)
    assert await store(driver, second, by=sibling.lease) == ["created"]
    wrong = Lease(mine.job_id, WRONG_TOKEN)
    refusals = {"wrong": (wrong, LeaseLost, START), "foreign": (foreign, BrokenBond, START)}
    refusals["expired"] = (mine, LeaseLost, START + LEASE)
    for name, (lease, error, now) in refusals.items():
        with row(name), pytest.raises(error):
            await store(driver, third, by=lease, now=now)

    assert await states(driver, third) == ["gone"]


async def test_joins_and_events_are_never_handed_out(driver: Driver) -> None:
    """Y46: they spend no rate, and nobody is warned that no worker takes them."""
    requires(driver, "workflows")
    rate = RateLimit(count=1, per=MINUTE)
    settings = QueueSettings(queue=QUEUE, enqueue_rate=rate, execute_rate=rate)
    await driver.configure_queue(settings, now=START)
    root, event = group(), bound(done_by="call")
    [child] = children(root, 1)
    await store(driver, root, event, child)

    async def warned_of() -> list[str]:
        return [*(await unclaimed(driver, QUEUE, [], before=START + MINUTE, page=10, now=START)).values()]

    assert await warned_of() == [child.id]
    assert [job.id for job in await reserve(driver, limit=10)] == [child.id]
    assert await states(driver, root, event) == ["blocked", "blocked"]
    assert await warned_of() == []
    [queue] = [info for info in await driver.queues(now=START) if info.queue == QUEUE]
    assert queue.oldest_ready_at is None


async def test_a_parked_job_holds_no_place_among_the_running(driver: Driver) -> None:
    """Y47 Y51: max_running does not count it; it and a parent get no speculative copy."""
    requires(driver, "workflows")
    await driver.configure_queue(QueueSettings(queue=QUEUE, max_running=1), now=START)
    parent = new_job()
    [child] = children(parent, 1)
    await store(driver, parent)
    [taken] = await take(driver, parent)
    await store(driver, child, by=taken.lease)
    assert isinstance(await driver.speculate(parent.id, now=START), NotAllowedInState)
    assert await reserve(driver) == []
    await settle_one(driver, Park(taken.lease, (child.id,)))

    assert isinstance(await driver.speculate(parent.id, now=START), NotAllowedInState)
    assert (await reserve_one(driver)).id == child.id


async def test_children_are_listed_in_enqueue_order(driver: Driver) -> None:
    """Y48: page by page, with a filter on their state."""
    requires(driver, "workflows")
    root, other = group(), group()
    kids = [bound(parent=root.id, queue=(QUEUE, OTHER_QUEUE)[number % 2]) for number in range(5)]
    await store(driver, root, *kids[:3], other, *children(other, 2), *kids[3:])
    listed = await found_ids(driver, parent=root.id, limit=2)

    assert listed == list(ids(kids))
    assert await found_ids(driver, parent=root.id, newest_first=True) == list(ids(kids))[::-1]
    await driver.cancel([kids[1].id], now=START)
    assert await found_ids(driver, parent=root.id, states=(JobState.CANCELLED,)) == [kids[1].id]
    assert await found_ids(driver, parent=root.id, queue=OTHER_QUEUE) == list(ids(kids))[1::2]
    taken = await reserve_one(driver)
    assert await found_ids(driver, parent=root.id, worker_id=taken.worker_id) == [kids[0].id]
    page = await driver.find(Query(parent=UNKNOWN_ID), now=START)
    assert (page.jobs, page.next_cursor) == ([], None)


async def test_a_group_may_come_after_others(driver: Driver) -> None:
    """Y29: it is over when its children and those are."""
    requires(driver, "workflows")
    first = new_job()
    root = after(first, done_by="children")
    [child] = children(root, 1)
    await store(driver, first, root, child)
    lease, of_child = [job.lease for job in await take(driver, first, child)]
    await settle_one(driver, Ack(of_child))
    await follow(driver)
    assert await states(driver, root) == ["blocked"]
    await settle_one(driver, Ack(lease))
    await follow(driver)

    assert await states(driver, root) == ["completed"]


async def test_a_failed_child_fails_all_above_it(driver: Driver) -> None:
    """Y32 Y37: the dead letter is the child; a parent makes no failure job."""
    requires(driver, "workflows")
    await driver.configure_queue(QueueSettings(queue=QUEUE, fail_queue="kit-dead"), now=START)
    top = group()
    middle = bound(parent=top.id, done_by="children")
    [leaf] = children(middle, 1)
    await store(driver, top, middle, leaf)
    await end(driver, leaf, JobState.FAILED)

    assert await states(driver, top, middle, leaf) == ["failed"] * 3
    assert (await get_one(driver, top.id)).failure_kind == "child_failed"
    assert (await driver.count(["kit-dead"], now=START))["kit-dead"].total == 1
    assert (await get_one(driver, top.id)).bonds == Bonds(done_by="children")
