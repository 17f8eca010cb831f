"""Y71 to Y81: jobs that park, and what they remember."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Noted, Query
from taskharbor.errors import BrokenBond, InvalidArgument, JobNotInflight, LeaseLost, ParkRefused
from taskharbor.model.job import JobRecord, Note
from taskharbor.model.settlement import Ack, Fail, Park, Retry
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import (
    LEASE,
    MINUTE,
    OTHER_WORKER,
    START,
    UNKNOWN_ID,
    WRONG_TOKEN,
    get_one,
    new_job,
    refused,
    requires,
    reserve,
    reserve_one,
    row,
    running,
    settle_one,
    unchanged,
)
from taskharbor.testing.conformance.relatives import (
    ack,
    children,
    family,
    follow,
    record,
    states,
    store,
    take,
)


async def note(driver: Driver, job: JobRecord, name: str, data: bytes = b"1", **when: object) -> object:
    [answer] = await driver.note([Note(name, data, lease=job.lease)], now=when.get("now", START))  # type: ignore[arg-type]
    return answer


async def test_a_parked_job_runs_again_once_its_children_are_over(driver: Driver) -> None:
    """Y71 Y77: however they ended; fence and starts rise, attempts and stalls start at 0."""
    requires(driver, "workflows")
    parent = new_job()
    await store(driver, parent)
    [first] = await take(driver, parent)
    await settle_one(driver, Retry(first.lease, reason="once"))
    [second] = await take(driver, parent)
    good, bad = children(parent, 2, optional=True)
    await store(driver, good, bad, by=second.lease)
    assert (await settle_one(driver, Park(second.lease, (good.id, bad.id)))).state is JobState.BLOCKED
    parked = await record(driver, parent)
    assert ((await family(driver, parent)).waits_for, parked.attempts, len(parked.history)) == (2, 0, 1)
    one, two = await take(driver, good, bad)
    await settle_one(driver, Ack(one.lease))
    await follow(driver)
    assert await states(driver, parent) == ["blocked"]
    await settle_one(driver, Fail(two.lease, "x"))
    await follow(driver)

    [third] = await take(driver, parent)
    assert (third.starts, third.attempts, third.stalls) == (3, 0, 0)
    assert third.fence > second.fence > first.fence
    await settle_one(driver, Ack(third.lease))
    assert await states(driver, parent) == ["completed"]


async def test_a_park_for_what_is_over_is_ready_at_once(driver: Driver) -> None:
    """Y72 Y73: and one with a delay is scheduled."""
    requires(driver, "workflows")
    parent = new_job()
    [child] = children(parent, 1)
    await store(driver, parent, child)
    mine, its = await take(driver, parent, child)
    await settle_one(driver, Ack(its.lease))
    assert (await settle_one(driver, Park(mine.lease, (child.id,)))).state is JobState.READY

    [again] = await take(driver, parent)
    assert (await settle_one(driver, Park(again.lease, delay=MINUTE))).state is JobState.SCHEDULED
    assert await reserve(driver) == []
    [last] = await take(driver, parent, now=START + MINUTE)
    assert last.starts == 3


async def test_a_park_for_a_job_that_is_no_child_is_refused(driver: Driver) -> None:
    """Y74: and the lease still holds. A keyed job cannot be parked."""
    requires(driver, "workflows")
    parent, keyed = new_job(), new_job(key=b"key")
    other = new_job()
    await store(driver, parent, other, keyed)
    taken = {job.id: job for job in await reserve(driver, limit=3)}
    mine = taken[parent.id].lease
    parks = {"foreign": Park(mine, (other.id,)), "unknown": Park(mine, (UNKNOWN_ID,))}
    parks["keyed"] = Park(taken[keyed.id].lease, delay=MINUTE)
    async with unchanged(driver, parent.id, other.id, keyed.id):
        for name, park in parks.items():
            with row(name):
                assert isinstance(await refused(driver, park), ParkRefused)
        for wrong in (Park(mine), Park(mine, (other.id,), MINUTE)):
            with pytest.raises(InvalidArgument):
                await driver.settle([wrong], now=START)

    await settle_one(driver, Ack(mine))


async def test_a_cancel_beats_a_park(driver: Driver) -> None:
    """Y75: with children, which are stopped, and without."""
    requires(driver, "workflows")
    alone, parent = new_job(), new_job()
    await store(driver, alone, parent)
    one, two = await take(driver, alone, parent)
    [child] = children(parent, 1, run_at=START + MINUTE)
    await store(driver, child, by=two.lease)
    await driver.cancel([alone.id, parent.id], now=START)
    await driver.settle([Park(one.lease, delay=MINUTE), Park(two.lease, (child.id,))], now=START)
    await follow(driver)

    assert await states(driver, alone, parent, child) == ["cancelled"] * 3


async def test_a_repeated_park_is_known_by_its_token(driver: Driver) -> None:
    """Y76: its notes are there after a lost reply."""
    requires(driver, "workflows")
    job = await running(driver)
    park = Park(job.lease, delay=MINUTE, notes=(Note("nap", b"1"), Note("nap", b"2")))
    await settle_one(driver, park)

    assert isinstance(await refused(driver, park), JobNotInflight)
    found = await get_one(driver, job.id)
    assert found.settled_token == job.token
    assert [(one.name, one.data, one.at) for one in found.notes] == [("nap", b"1", START)]


async def test_a_note_is_kept_once_per_name(driver: Driver) -> None:
    """Y78 Y77: a known name keeps what it has; a new one is progress."""
    requires(driver, "workflows")
    job = await running(driver)
    await settle_one(driver, Retry(job.lease, reason="once"))
    job = await reserve_one(driver)
    first, again = await note(driver, job, "render"), await note(driver, job, "render", b"2")

    assert isinstance(first, Noted)
    assert first == again
    assert (first.data, first.at) == (b"1", START)
    assert (await get_one(driver, job.id)).attempts == 0


async def test_a_note_under_a_lost_lease_is_refused(driver: Driver) -> None:
    """Y79 N06: expired, settled, of another claim, or in the name of another worker."""
    requires(driver, "workflows")
    job, other = await running(driver), await running(driver)
    await settle_one(driver, Ack(other.lease))
    foreign = (replace(job.lease, token=WRONG_TOKEN), replace(job.lease, worker_id=OTHER_WORKER))
    async with unchanged(driver, job.id, other.id):
        answers = [await driver.note([Note("step", b"1", lease=lease)], now=START) for lease in foreign]
        assert all(isinstance(answer, LeaseLost) for [answer] in answers)
        assert isinstance(await note(driver, job, "late", now=START + LEASE), LeaseLost)
        assert isinstance(await note(driver, other, "late"), LeaseLost)


async def test_notes_are_bounded(driver: Driver) -> None:
    """Y80: 1,000 of them, and 4 MiB."""
    requires(driver, "workflows")
    job, large = await running(driver), await running(driver)
    await driver.note([Note(f"{number}", b"", lease=job.lease) for number in range(1000)], now=START)
    assert isinstance(await note(driver, job, "one more"), BrokenBond)
    assert isinstance(await note(driver, job, "7"), Noted)
    mib = bytes(1024 * 1024)
    notes = [Note(f"{number}", mib, lease=large.lease) for number in range(4)]
    assert all(isinstance(answer, Noted) for answer in await driver.note(notes, now=START))

    assert isinstance(await note(driver, large, "byte"), BrokenBond)
    park = Park(large.lease, delay=MINUTE, notes=(Note("byte", b"1"),))
    assert isinstance(await refused(driver, park), ParkRefused)


async def test_reserve_and_get_show_notes_and_find_does_not(driver: Driver) -> None:
    """Y81: a first run has none to read. Without payloads, a look shows none either."""
    requires(driver, "workflows")
    job = await running(driver)
    await note(driver, job, "render")
    await settle_one(driver, Retry(job.lease, reason="again"))
    again = await reserve_one(driver)
    page = await driver.find(Query(), now=START)

    assert again.notes == (await get_one(driver, job.id)).notes == (Note("render", b"1", START),)
    assert [one.notes for one in page.jobs] == [()]
    assert [one and one.notes for one in await driver.get([job.id], now=START, payloads=False)] == [()]


async def test_a_note_has_a_name_that_can_be_shown(driver: Driver) -> None:
    """Y80: 1 to 255 printable characters, and a lease."""
    requires(driver, "workflows")
    job = await running(driver)
    async with unchanged(driver, job.id):
        for name in ("", "n" * 256, "a\0b", "a\nb", "\ud800"):
            with row(repr(name)), pytest.raises(InvalidArgument):
                await driver.note([Note(name, b"1", lease=job.lease)], now=START)
            with row(repr(name)), pytest.raises(InvalidArgument):
                await driver.settle([Park(job.lease, delay=MINUTE, notes=(Note(name, b"1"),))], now=START)
        with pytest.raises(InvalidArgument):
            await driver.note([Note("step", b"1")], now=START)


async def test_an_awaited_child_may_be_awaited_again(driver: Driver) -> None:
    """Y71: by the next run of its parent."""
    requires(driver, "workflows")
    parent = new_job()
    one, two = children(parent, 2)
    await store(driver, parent)
    for child in (one, two):
        [taken] = await take(driver, parent)
        await store(driver, child, by=taken.lease)
        await settle_one(driver, Park(taken.lease, (child.id,)))
        await ack(driver, child)
    await ack(driver, parent)

    assert await states(driver, parent) == ["completed"]
