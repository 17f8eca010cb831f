"""Ends of siblings that meet: the last one to commit ends their parent, whichever way each takes."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from taskharbor.drivers.postgres import PostgresDriver, families
from taskharbor.errors import DriverUnavailable
from taskharbor.model.settlement import Ack, Fail
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import claim, new_jobs
from taskharbor.testing.conformance.relatives import after, children, group
from tests.integration.postgres.test_children import states, taken

DONE, FAILED, CANCELLED, WAITS = (
    JobState.COMPLETED,
    JobState.FAILED,
    JobState.CANCELLED,
    JobState.BLOCKED,
)


@pytest.fixture
async def other(driver: PostgresDriver) -> AsyncIterator[PostgresDriver]:
    async with driver.another() as other:
        yield other


class Before:
    """A connection on which something else happens before the first statement of this name."""

    def __init__(
        self, connection: Any, statement: str, happens: list[Callable[[], Awaitable[object]]]
    ) -> None:
        self._connection = connection
        self._statement = statement
        self._happens = happens

    async def fetch(self, statement: str, *arguments: Any) -> Any:
        if statement == self._statement and self._happens:
            await self._happens.pop()()
        return await self._connection.fetch(statement, *arguments)


@contextmanager
def meeting(driver: PostgresDriver, name: str, meet: Callable[[], Awaitable[object]]) -> Iterator[None]:
    """The next step of a family that gets to this statement has read its parent; then `meet` happens."""
    happens = [meet]
    answered = families.answered
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            families,
            "answered",
            lambda connection, asked: answered(Before(connection, driver._sql[name], happens), asked),
        )
        yield
    assert not happens


async def test_a_failure_meets_the_ack_of_a_sibling(driver: PostgresDriver, other: PostgresDriver) -> None:
    root = group(tolerate=1)
    await driver.enqueue([root, *children(root, 2), last := after(root)])
    one, two = await taken(driver, 2)
    with meeting(driver, "write_families", lambda: other.settle([Ack(two.lease)])):
        await driver.settle([Fail(one.lease, "no")])

    assert await states(other, root, last) == [DONE, JobState.READY]


@pytest.mark.parametrize("stop", ["cancel", "fail_fast"])
async def test_a_stop_meets_the_acks_of_the_running_children(
    driver: PostgresDriver, other: PostgresDriver, stop: str
) -> None:
    """The stop takes the child that waits, and has read its parent before the running ones were counted."""
    root = group(fail_fast=stop == "fail_fast")
    await driver.enqueue([root, *children(root, 4)])
    one, *rest = await taken(driver, 3)
    if stop == "cancel":
        rest.append(one)
    with meeting(driver, "family_page", lambda: other.settle([Ack(job.lease) for job in rest])):
        if stop == "cancel":
            await driver.cancel([root.id])
        else:
            await driver.settle([Fail(one.lease, "no")])

    assert await states(other, root) == [CANCELLED if stop == "cancel" else FAILED]


async def test_the_end_of_a_group_within_meets_the_ack_beside_it(
    driver: PostgresDriver, other: PostgresDriver
) -> None:
    root = group()
    within = group(parent=root.id)
    top = group(parent=within.id)
    await driver.enqueue([root, within, top, *children(top, 1), *children(within, 1), *children(root, 1)])
    one, two, three = await taken(driver, 3)

    async def beside() -> None:
        await other.settle([Ack(two.lease)])
        await other.settle([Ack(three.lease)])

    with meeting(driver, "write_families", beside):
        await driver.settle([Ack(one.lease)])

    assert await states(other, top, within, root) == [DONE] * 3


async def test_the_commit_of_a_transaction_meets_the_ack_of_a_sibling(
    driver: PostgresDriver, other: PostgresDriver
) -> None:
    root = group()
    await driver.enqueue([root, *children(root, 2)])
    one, two = await taken(driver, 2)
    with meeting(driver, "write_families", lambda: other.settle([Ack(two.lease)])):
        async with driver.transaction(one.lease):
            pass

    assert await states(other, root) == [DONE]


# ------------------------------------------------------------------ a handle that never looks


@pytest.fixture
async def left(driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A group that is over, but the handle that ended its last child died before it looked."""
    root = group()
    await driver.enqueue([root, *children(root, 3), last := after(root)])
    jobs = await taken(driver, 3)

    async def dead(*_: Any) -> bool:
        return False

    with monkeypatch.context() as patch:
        patch.setattr(driver, "_judge_counted", dead)
        await driver.settle([Ack(job.lease) for job in jobs])
    assert await states(driver, root, last) == [WAITS, WAITS]
    return root, last


async def test_a_claim_that_comes_back_short_ends_what_a_dead_handle_left(
    left: Any, other: PostgresDriver
) -> None:
    """Nobody calls promote, and the same claim hands out what that releases."""
    root, last = left
    got = await other.reserve(claim(limit=5))

    assert [job.id for job in got.jobs] == [last.id]
    assert [end.id for end in got.ended] == [root.id]


async def test_an_exchange_that_comes_back_short_does_so_too(left: Any, other: PostgresDriver) -> None:
    root, last = left
    await other.enqueue(new_jobs(1))
    [job] = await taken(other, 1)
    got = await other.exchange([Ack(job.lease)], claim(limit=5))

    assert [job.id for job in got.claimed] == [last.id]
    assert [end.id for end in got.ended] == [root.id]


async def test_a_reclaim_does_so_too(left: Any, other: PostgresDriver) -> None:
    root, last = left
    await other.reclaim()
    assert await states(other, root, last) == [DONE, JobState.READY]
    assert [end.id for end in (await other.promote()).ended] == [root.id]


async def test_full_claims_do_so_now_and_then(left: Any, other: PostgresDriver) -> None:
    root, _ = left
    await other.enqueue(new_jobs(100))
    for _ in range(100):
        assert len(await taken(other, 1)) == 1

    assert await states(other, root) == [DONE]


async def test_a_handle_looks_at_most_once_a_second(
    left: Any, other: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    async def look(*_: Any, **__: Any) -> int:
        looked.append(1)
        return 0

    monkeypatch.setattr(other, "_judge_all_over", look)
    for _ in range(3):
        await taken(other, 1)
        await other.reclaim()
    assert len(looked) == 1
    other._looks_from = 0.0  # a second later
    await taken(other, 1)
    assert len(looked) == 2


async def test_a_lost_answer_is_no_lost_end(
    driver: PostgresDriver, other: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acks are committed, and their caller never learns what they counted."""
    root = group()
    await driver.enqueue([root, *children(root, 2)])
    jobs = await taken(driver, 2)
    rows = driver._connections.rows

    async def lost(*arguments: Any, **options: Any) -> Any:
        await rows(*arguments, **options)
        raise DriverUnavailable("the connection was lost", done=None)

    with monkeypatch.context() as patch:
        patch.setattr(driver._connections, "rows", lost)
        with pytest.raises(DriverUnavailable):
            await driver.settle([Ack(job.lease) for job in jobs])
    assert await states(other, root) == [WAITS]
    await taken(other, 1)
    assert await states(other, root) == [DONE]


async def test_a_handle_that_closes_looks_before(
    store_url: str, other: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second look is due in a second, and there is no other call of it to make it."""
    root = group()
    async with PostgresDriver.from_url(store_url) as closing:
        await closing.enqueue([root, *children(root, 2)])
        jobs = await taken(closing, 2)
        looked = closing._judge_counted

        async def far(counted: str, now: Any) -> bool:
            return await looked("2" + counted[1:], now)

        monkeypatch.setattr(closing, "_judge_counted", far)
        await closing.settle([Ack(job.lease) for job in jobs])
        assert await states(other, root) == [WAITS]

    assert await states(other, root) == [DONE]
