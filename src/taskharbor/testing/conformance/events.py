"""Y82 to Y88: jobs that are done by a call."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Resolution, Resolved
from taskharbor.errors import BrokenBond, InvalidArgument, JobNotFound, NotAllowedInState
from taskharbor.model.job import NewJob
from taskharbor.model.settlement import Ack, Park
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    MINUTE,
    START,
    UNKNOWN_ID,
    new_job,
    requires,
    row,
    settle_one,
    unchanged,
)
from taskharbor.testing.conformance.relatives import (
    ack,
    after,
    bound,
    children,
    counts,
    follow,
    record,
    states,
    store,
    take,
)


def event_of(parent: NewJob, **fields: object) -> NewJob:
    return bound(parent=parent.id, done_by="call", optional=True, **fields)


async def send(driver: Driver, event: NewJob, result: bytes = b"yes", **fields: object) -> object:
    item = Resolution(id=event.id, result=result, **fields)  # type: ignore[arg-type]
    [answer] = await driver.resolve([item], now=START)
    return answer


async def test_an_event_ends_and_its_waiter_runs_again(driver: Driver) -> None:
    """Y82: with the result."""
    requires(driver, "workflows")
    parent = new_job()
    await store(driver, parent)
    [taken] = await take(driver, parent)
    event = event_of(parent)
    await store(driver, event, by=taken.lease)
    await settle_one(driver, Park(taken.lease, (event.id,)))
    answer = await send(driver, event)
    await follow(driver)

    assert isinstance(answer, Resolved)
    assert answer.state is JobState.COMPLETED
    assert (await record(driver, event)).result == b"yes"
    assert await states(driver, parent) == ["ready"]


async def test_an_event_may_come_before_its_waiter(driver: Driver) -> None:
    """Y83: it is stored resolved, and a job that waits for it later finds it."""
    requires(driver, "workflows")
    parent = new_job()
    event = event_of(parent)
    await store(driver, parent)
    assert isinstance(await send(driver, event), JobNotFound)
    assert isinstance(await send(driver, event, new=event), Resolved)
    [taken] = await take(driver, parent)

    assert await store(driver, event, by=taken.lease) == ["duplicate"]
    assert (await settle_one(driver, Park(taken.lease, (event.id,)))).state is JobState.READY
    assert await counts(driver, parent) == (1, 0, 0, 0, 0)


async def test_the_first_result_wins(driver: Driver) -> None:
    """Y84: the same again is answered as if it were the first, another one is refused."""
    requires(driver, "workflows")
    event = bound(done_by="call")
    await store(driver, event)
    first = await send(driver, event)

    async with unchanged(driver, event.id):
        assert await send(driver, event) == first
        assert isinstance(await send(driver, event, b"no"), NotAllowedInState)


async def test_a_deadline_beats_a_later_event(driver: Driver) -> None:
    """Y85: never both."""
    requires(driver, "workflows")
    event = bound(done_by="call", within=MINUTE)
    await store(driver, event)
    await follow(driver, now=START + MINUTE)

    assert isinstance(await send(driver, event), NotAllowedInState)
    over = await record(driver, event)
    assert (over.state, over.failure_kind) == (JobState.FAILED, "timeout")


async def test_an_event_resolved_with_an_error_has_failed(driver: Driver) -> None:
    """Y86: and what comes after it is skipped. The same error again is answered as if it were the first."""
    requires(driver, "workflows")
    event = bound(done_by="call", type="approval")
    next_ = after(event)
    await store(driver, event, next_)
    [answer] = await driver.resolve([Resolution(id=event.id, error="no")], now=START)
    await follow(driver)

    assert isinstance(answer, Resolved)
    over = await record(driver, event)
    assert (over.state, over.last_error, over.failure_kind) == (JobState.FAILED, "no", "error")
    async with unchanged(driver, event.id):
        [again] = await driver.resolve([Resolution(id=event.id, error="no")], now=START)
    assert again == replace(answer, ended=())  # what it skipped is in one answer only
    assert (await record(driver, next_)).last_error == "skipped: approval failed"


async def test_an_error_of_a_call_is_stored_like_that_of_a_handler(driver: Driver) -> None:
    """Y86: cut, and without characters that a store refuses; so a repeat of it is known, too."""
    requires(driver, "workflows")
    event = bound(done_by="call")
    await store(driver, event)
    item = Resolution(id=event.id, error="a\0b" + "x" * 2000)
    first, again = [(await driver.resolve([item], now=START))[0] for _ in range(2)]

    assert isinstance(first, Resolved)
    assert first == again
    kept = (await record(driver, event)).last_error
    assert kept is not None
    assert kept.startswith("a\ufffdbxxx")
    assert len(kept.encode()) <= 1024


async def test_only_a_job_that_is_done_by_a_call_is_resolved(driver: Driver) -> None:
    """Y87: not one of a worker, a group, or an unknown one."""
    requires(driver, "workflows")
    plain, root = new_job(), bound(done_by="children")
    [child] = children(root, 1)
    await store(driver, plain, root, child)
    for name, job in (("worker", plain), ("children", root), ("child", child)):
        with row(name):
            assert isinstance(await send(driver, job), NotAllowedInState)
    [unknown] = await driver.resolve([Resolution(id=UNKNOWN_ID)], now=START)
    assert isinstance(unknown, JobNotFound)


async def test_a_call_with_an_item_that_can_never_be_resolves_nothing(driver: Driver) -> None:
    """Y87: a new job that is too deep is a bad argument, and refuses the items beside it, too."""
    requires(driver, "workflows")
    tower, event = [bound(done_by="children")], bound(done_by="call")
    for _ in range(15):
        tower.append(bound(parent=tower[-1].id, done_by="children"))
    lowest = bound(parent=tower[-1].id)
    await store(driver, event, *tower, lowest)
    deep = bound(parent=lowest.id, done_by="call")
    items = [Resolution(id=event.id, result=b"1"), Resolution(id=deep.id, new=deep)]
    async with unchanged(driver, event.id):
        with pytest.raises(InvalidArgument):
            await driver.resolve(items, now=START)

    assert await states(driver, deep) == ["gone"]


async def test_an_event_for_a_job_that_is_over_is_refused(driver: Driver) -> None:
    """Y88: and nothing is stored. Events that are open when the own work ends are cancelled."""
    requires(driver, "workflows")
    parent = new_job()
    open_, late = event_of(parent), event_of(parent)
    await store(driver, parent, open_)
    [taken] = await take(driver, parent)
    await settle_one(driver, Ack(taken.lease))
    await follow(driver)

    assert await states(driver, parent, open_) == ["completed", "cancelled"]
    assert isinstance(await send(driver, late, new=late), BrokenBond)
    assert await states(driver, late) == ["gone"]


async def test_a_group_that_is_filled_is_over_once_it_is_resolved(driver: Driver) -> None:
    """Y82: and its children are."""
    requires(driver, "workflows")
    root = bound(done_by="call")
    [child] = children(root, 1)
    await store(driver, root, child)
    answer = await send(driver, root, b"filled")
    assert isinstance(answer, Resolved)
    assert answer.state is JobState.BLOCKED
    await ack(driver, child)

    over = await record(driver, root)
    assert (over.state, over.result) == (JobState.COMPLETED, b"filled")
