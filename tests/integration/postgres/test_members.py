"""Jobs with more bonds than a parent: acks and releases in the usual case take one statement."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from taskharbor.drivers.families import STEP_LIMIT
from taskharbor.drivers.messages import Settled
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.errors import DriverUnavailable
from taskharbor.model.bonds import When
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob, Note
from taskharbor.model.settlement import Ack, Fail, Park, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import claim, new_job
from taskharbor.testing.conformance.relatives import after, bound, children, group
from tests.integration.postgres.test_children import Counted, states, taken
from tests.integration.postgres.test_lock_order import waits

DONE, READY, RUNNING, WAITS, SKIPPED = (
    JobState.COMPLETED,
    JobState.READY,
    JobState.RUNNING,
    JobState.BLOCKED,
    JobState.CANCELLED,
)


def chain(parent: NewJob, length: int) -> list[NewJob]:
    links = children(parent, 1)
    for _ in range(length - 1):
        links.append(after(links[-1]))
    return links


async def test_a_link_of_a_chain_takes_one_statement(
    driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It releases the next one, which the same exchange hands out. The last one ends the group by a step."""
    root = group()
    links = chain(root, 4)
    await driver.enqueue([root, *links])
    [job] = await taken(driver, 1)
    asked = Counted(driver, monkeypatch)

    for link in links[1:]:
        [job] = (await driver.exchange([Ack(job.lease, b"1")], claim())).claimed
        assert job.id == link.id
        assert asked.take() == ["exchange"]
    answer = await driver.exchange([Ack(job.lease)], claim())
    assert asked.take()[:2] == ["exchange", "transaction"]

    assert [end.id for end in answer.ended] == [root.id]
    assert await states(driver, root, *links) == [DONE] * 5
    records = await driver.get([link.id for link in links])
    assert [record and record.result for record in records] == [b"1", b"1", b"1", None]


def parent_of(job: NewJob) -> str | None:
    return None if job.bonds is None else job.bonds.parent


UNUSUAL: dict[str, Callable[[NewJob], list[NewJob]]] = {
    "two after it": lambda first: [after(first), after(first)],
    "it comes after another, too": lambda first: [
        other := bound(parent=parent_of(first), done_by="call"),
        after(first, other),
    ],
    "a group": lambda first: [after(first, done_by="children")],
    "only after a failure": lambda first: [after(first, when="failure")],
    "nothing": lambda first: [],
}


async def settles_as_link(session: Any, job: Any) -> bool:
    """Whether the short way takes the ack of this job."""
    call = "select o_version from settle_link(null, $1::text::uuid, $2::text::uuid, $3, null)"
    return await session.fetchval(call, job.id, job.token, job.worker_id) is not None


async def test_the_short_way_takes_a_link_with_one_job_after_it(driver: PostgresDriver, session: Any) -> None:
    root = group()
    first, last = chain(root, 2)
    await driver.enqueue([root, first, last])
    [job] = await taken(driver, 1)

    assert not await settles_as_link(session, replace(job, token=Entropy().token()))
    assert not await settles_as_link(session, replace(job, worker_id="another"))
    assert await states(driver, first, last) == [RUNNING, WAITS]
    assert await settles_as_link(session, job)
    assert await states(driver, first, last) == [DONE, READY]
    assert not await settles_as_link(session, job)


@pytest.mark.parametrize("what", UNUSUAL)
async def test_the_short_way_leaves_all_else_as_it_is(
    driver: PostgresDriver, session: Any, what: str
) -> None:
    root = group()
    [first] = children(root, 1)
    rest = UNUSUAL[what](first)
    await driver.enqueue([root, first, *rest])
    [job] = await taken(driver, 1)

    assert not await settles_as_link(session, job)
    assert await states(driver, first, *rest) == [RUNNING] + [WAITS] * len(rest)
    assert await session.fetchval("select count(*) from lease") == 1


async def test_one_that_comes_after_several_waits_for_the_last_of_them(
    driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = group()
    parts = children(root, 3)
    last = after(*parts)
    await driver.enqueue([root, *parts, last])
    jobs = await taken(driver, 3)
    asked = Counted(driver, monkeypatch)

    await driver.settle([Ack(jobs[0].lease)])
    assert await states(driver, last) == [WAITS]
    asked.take()
    answer = await driver.exchange([Ack(job.lease) for job in jobs[1:]], claim())
    assert asked.take() == ["exchange"]

    assert [job.id for job in answer.claimed] == [last.id]


async def test_jobs_of_every_kind_are_settled_in_one_statement(
    driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, lonely = group(), group()
    links, kids, plain = chain(root, 2), children(lonely, 300), new_job()
    await driver.enqueue([root, *links, lonely, *kids])
    await driver.enqueue([plain])
    jobs = await taken(driver, 302)
    asked = Counted(driver, monkeypatch)
    answer = await driver.exchange([Ack(job.lease) for job in jobs if job.id != kids[0].id], claim())

    assert asked.take() == ["exchange", "over_families"]
    assert all(isinstance(one, Settled) and one.state is DONE for one in answer.settled)
    assert [job.id for job in answer.claimed] == [links[1].id]
    assert await states(driver, root, lonely, plain) == [WAITS, WAITS, DONE]


async def test_a_claim_of_several_kinds_leaves_no_hints(driver: PostgresDriver, session: Any) -> None:
    """The sweep would have to look at them when their leases run out."""
    root = group()
    first, _ = chain(root, 2)
    await driver.enqueue([root, first, *children(root, 1), new_job()])
    jobs = await taken(driver, 3)
    await driver.settle([Ack(job.lease) for job in jobs])

    assert await session.fetchval("select count(*) from lease") == 0


async def test_the_failure_of_an_optional_job_holds_up_nothing(driver: PostgresDriver) -> None:
    """To the ack of the last one it looks as a failure: a step finds out that it is none."""
    root = group()
    first, second = children(root, 2, optional=True)
    last = after(first, second)
    await driver.enqueue([root, first, second, last])
    one, two = await taken(driver, 2)
    await driver.settle([Fail(one.lease, "no")])
    answer = await driver.exchange([Ack(two.lease)], claim())

    assert [job.id for job in answer.claimed] == [last.id]


@pytest.mark.parametrize("when", ["success", "failure"])
async def test_what_a_handle_leaves_when_it_dies_is_found_by_another(
    driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch, when: When
) -> None:
    """It has acked the last job, and neither ended the group nor skipped what is not to run."""

    async def dies(*_: object) -> bool:
        raise DriverUnavailable("killed", done=None)

    root = group()
    [first] = children(root, 1)
    rest = [] if when == "success" else [after(first, when=when)]
    await driver.enqueue([root, first, *rest, last := after(root)])
    [job] = await taken(driver, 1)
    await driver.note([Note("one", b"1", lease=job.lease)])
    monkeypatch.setattr(driver, "_judge_counted", dies)
    with pytest.raises(DriverUnavailable):
        await driver.settle([Ack(job.lease)])
    assert await states(driver, root, first) == [WAITS, DONE]

    async with driver.another() as other:
        assert [job.id for job in await taken(other, 1)] == [last.id]
        assert await states(other, root, *rest) == [DONE, SKIPPED][: 1 + len(rest)]


async def test_a_job_that_must_not_run_now_is_skipped_by_a_step(driver: PostgresDriver) -> None:
    """Whatever is not simply a release is owed, and carried out behind the ack."""
    root = group()
    [first] = children(root, 1)
    cleanup, last = after(first, when="failure"), after(first)
    await driver.enqueue([root, first, cleanup, last])
    [job] = await taken(driver, 1)
    answer = await driver.exchange([Ack(job.lease)], claim())

    assert [job.id for job in answer.claimed] == [last.id]
    assert [end.id for end in answer.ended] == [cleanup.id]
    assert await states(driver, first, cleanup, last) == [DONE, SKIPPED, RUNNING]


async def test_an_ack_with_many_followers_is_left_to_a_step(
    driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step carries out so many that a call stays short, and owes the rest."""
    root = group()
    [first] = children(root, 1)
    crowd = [after(first) for _ in range(STEP_LIMIT + 1)]
    await driver.enqueue([root, first, *crowd])
    [job] = await taken(driver, 1)
    asked = Counted(driver, monkeypatch)
    await driver.settle([Ack(job.lease)])

    assert asked.take()[:2] == ["exchange", "transaction"]
    assert await states(driver, *crowd) == [READY] * len(crowd)


async def test_a_parked_job_goes_on_with_the_last_of_its_children(
    driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await driver.enqueue([parent := new_job()])
    [job] = await taken(driver, 1)
    kids = children(parent, 2)
    await driver.enqueue(kids, by=job.lease)
    await driver.settle([Park(job.lease, tuple(kid.id for kid in kids))])
    jobs = await taken(driver, 2)
    asked = Counted(driver, monkeypatch)
    [again] = (await driver.exchange([Ack(one.lease) for one in jobs], claim())).claimed

    assert asked.take() == ["exchange"]
    assert (again.id, again.starts) == (parent.id, 2)
    await driver.settle([Ack(again.lease)])
    assert await states(driver, parent, *kids) == [DONE] * 3


async def test_an_attempt_behind_others_leaves_an_entry_in_the_history(driver: PostgresDriver) -> None:
    root = group()
    first, last = chain(root, 2)
    await driver.enqueue([root, first, last])
    await driver.settle([Retry((await taken(driver, 1))[0].lease, reason="once")])
    await driver.settle([Ack((await taken(driver, 1))[0].lease)])
    [record] = await driver.get([first.id])

    assert record is not None
    assert [entry.outcome for entry in record.history] == ["retried", "completed"]
    assert await states(driver, last) == [READY]


async def test_a_tree_that_somebody_has_is_waited_for_by_a_step(
    driver: PostgresDriver, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = group()
    first, last = chain(root, 2)
    await driver.enqueue([root, first, last])
    [job] = await taken(driver, 1)
    asked = Counted(driver, monkeypatch)
    async with session.transaction():
        await session.execute("select from family where id = $1::text::uuid for update", root.id)
        acting = asyncio.ensure_future(driver.exchange([Ack(job.lease)], claim()))
        assert await waits(session, session, acting)
        assert asked.take() == ["exchange", "transaction"]

    assert [job.id for job in (await acting).claimed] == [last.id]


async def test_a_job_that_somebody_has_is_released_afterwards(driver: PostgresDriver, session: Any) -> None:
    root = group()
    first, last = chain(root, 2)
    await driver.enqueue([root, first, last])
    [job] = await taken(driver, 1)
    async with session.transaction():
        await session.execute("select from job_state where id = $1::text::uuid for update", last.id)
        acting = asyncio.ensure_future(driver.exchange([Ack(job.lease)], claim()))
        assert await waits(session, session, acting)
        assert await session.fetchval("select count(*) from owed") == 1
        assert await states(driver, first, last) == [DONE, WAITS]

    assert [job.id for job in (await acting).claimed] == [last.id]
    assert await session.fetchval("select count(*) from owed") == 0


@pytest.mark.parametrize("wrong", ["token", "worker", "end"])
async def test_a_link_ends_under_its_own_lease_alone(driver: PostgresDriver, wrong: str) -> None:
    root = group()
    links = chain(root, 2)
    await driver.enqueue([root, *links])
    [job] = await taken(driver, 1)
    lease, now = job.lease, None
    if wrong == "token":
        lease = replace(lease, token="0" * 32)
    elif wrong == "worker":
        lease = replace(lease, worker_id="another")
    else:
        now = job.lease_expires_at

    [answer] = await driver.settle([Ack(lease)], now=now)

    assert not isinstance(answer, Settled)
    assert await states(driver, *links) == [RUNNING, WAITS]
