"""Y99: what ends in one call, and who may run by it: the fastest way of a store keeps the same rules."""

from __future__ import annotations

from typing import Any

from taskharbor.drivers.contract import Driver
from taskharbor.model.job import NewJob
from taskharbor.model.settlement import Ack, Fail, Park, Retry, Settlement
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    HOUR,
    MINUTE,
    OTHER_QUEUE,
    START,
    claim,
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
    children,
    counts,
    family,
    follow,
    group,
    record,
    states,
    store,
    take,
)


def chain_of(root: NewJob, length: int) -> list[NewJob]:
    links = [bound(parent=root.id)]
    while len(links) < length:
        links.append(after(links[-1]))
    return links


async def test_the_next_link_comes_with_the_answer_to_the_one_before(driver: Driver) -> None:
    """Y99: an exchange settles, carries out, then claims."""
    requires(driver, "workflows")
    root = group()
    links = chain_of(root, 5)
    await store(driver, root, *links)
    taken = await reserve_one(driver)
    for link in links[1:]:
        answer = await driver.exchange([Ack(taken.lease, b"r")], claim(), now=START)
        [taken] = answer.claimed

        assert (taken.id, taken.bonds, taken.root) == (link.id, link.bonds, root.id)
        assert (taken.version, taken.family and taken.family.waits_for) == (3, 0)
    await settle_one(driver, Ack(taken.lease))
    await follow(driver)
    assert await states(driver, root, *links) == ["completed"] * 6
    assert await counts(driver, root) == (5, 0, 0, 0, 0)


async def test_jobs_that_end_in_one_call_release_what_waits_for_all_of_them(driver: Driver) -> None:
    """Y99: it is released once; one that waits for another as well goes on waiting."""
    requires(driver, "workflows")
    for parent in (None, group()):
        with row("children" if parent else "roots"):
            of = {} if parent is None else {"parent": parent.id}
            some, open_ = [bound(**of) for _ in range(3)], bound(**of)
            join, waits = after(*some, **of), after(open_, *some, **of)
            await store(driver, *([parent] if parent else []), *some, open_, join, waits)
            *taken, last = await take(driver, *some, open_)
            await driver.settle([Ack(job.lease) for job in taken], now=START)
            await follow(driver)

            assert await states(driver, join, waits) == ["ready", "blocked"]
            assert (await family(driver, waits)).waits_for == 1
            assert (await record(driver, join)).version == 2
            await settle_one(driver, Ack(last.lease))
            await ack(driver, join, waits)


async def test_a_join_waits_for_a_job_that_runs_again_meanwhile(driver: Driver) -> None:
    """Y99: what it waits for is counted, but looked at before it is released."""
    requires(driver, "workflows")
    first, second = new_jobs(2)
    join = after(first, second)
    await store(driver, first, second, join)
    one, two = await take(driver, first, second)
    await settle_one(driver, Ack(one.lease))
    await driver.requeue([first.id], now=START)
    await settle_one(driver, Ack(two.lease))
    await follow(driver)

    assert await states(driver, join) == ["blocked"]
    assert (await family(driver, join)).waits_for == 1
    await ack(driver, first)
    await ack(driver, join)
    assert (await record(driver, join)).starts == 1


async def test_a_released_job_is_handed_out_as_it_was_stored(driver: Driver) -> None:
    """Y99: whatever its payload, its counts and its lane are."""
    requires(driver, "workflows")
    odd: list[dict[str, Any]] = [
        {"payload": b"", "requires": "gpu"},
        {"payload": b"x" * 300, "max_attempts": 200, "requires": "gpu"},
        {"payload": b"x" * 70_000, "max_attempts": 70_000, "max_stalls": 1, "requires": "cpu"},
        {"type": "t" * 40, "max_stalls": 300, "timeout": HOUR},
        {"headers": {"a": "b"}, "min_backoff": MINUTE, "max_backoff": HOUR, "priority": 7},
    ]
    for number, fields in enumerate(odd):
        with row(str(number)):
            first = new_job()
            last = after(first, **fields)
            await store(driver, first, last)
            taken = await reserve_one(driver)
            await settle_one(driver, Ack(taken.lease))
            await follow(driver)
            [handed] = await reserve(driver, lanes=(last.requires,), limit=9)

            assert handed.id == last.id
            kept = ("type", "payload", "requires", "max_attempts", "max_stalls", "timeout", "priority")
            assert [getattr(handed, name) for name in kept] == [getattr(last, name) for name in kept]
            assert (handed.headers, handed.min_backoff) == (last.headers, last.min_backoff)
            await settle_one(driver, Ack(handed.lease))


async def test_children_that_end_in_one_call_resume_their_parent_once(driver: Driver) -> None:
    """Y99: parked for both of them; parked again, it waits again."""
    requires(driver, "workflows")
    parent = new_job()
    await store(driver, parent)
    for number in (1, 2):
        with row(str(number)):
            own = await reserve_one(driver)
            kids = children(parent, 2, optional=True)
            await store(driver, *kids, by=own.lease)
            await settle_one(driver, Park(own.lease, tuple(kid.id for kid in kids)))
            taken = await take(driver, *kids)
            await driver.settle([Ack(job.lease) for job in taken], now=START)
            await follow(driver)

            parked = await record(driver, parent)
            assert (parked.state, parked.starts) == (JobState.READY, number)
            assert (parked.family and parked.family.waits_for) == 0
    await ack(driver, parent)
    assert await counts(driver, parent) == (4, 0, 0, 0, 0)


async def test_ends_of_every_kind_in_one_call_do_what_each_does_alone(driver: Driver) -> None:
    """Y99: an ack, a failure and a retry, each with a job behind it."""
    requires(driver, "workflows")
    root = group(tolerate=None)
    firsts = children(root, 3)
    lasts = [after(first) for first in firsts]
    await store(driver, root, *firsts, *lasts)
    good, bad, again = await take(driver, *firsts)
    ends: list[Settlement] = [Ack(good.lease), Fail(bad.lease, "broken"), Retry(again.lease, reason="again")]
    await driver.settle(ends, now=START)
    await follow(driver)

    assert await states(driver, *lasts) == ["ready", "cancelled", "blocked"]
    assert await counts(driver, root) == (6, 3, 1, 0, 1)
    await ack(driver, firsts[2], lasts[0])
    await ack(driver, lasts[2])
    assert await states(driver, root) == ["completed"]


async def test_a_graph_over_two_queues_runs_in_order(driver: Driver) -> None:
    """Y99: whichever queue the claim of a call is for."""
    requires(driver, "workflows")
    root = group()
    first = bound(parent=root.id)
    near, far = after(first), after(first, queue=OTHER_QUEUE)
    last = after(near, far)
    await store(driver, root, first, near, far, last)
    taken = await reserve_one(driver)
    one = await driver.exchange([Ack(taken.lease)], claim(limit=9), now=START)
    other = await driver.reserve(claim(queues=(OTHER_QUEUE,), limit=9), now=START)
    both = [*one.claimed, *other.jobs]

    assert [job.id for job in both] == [near.id, far.id]
    await driver.settle([Ack(job.lease) for job in both], now=START)
    await ack(driver, last)
    assert await states(driver, root) == ["completed"]
