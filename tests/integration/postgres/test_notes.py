"""Notes of running jobs: the usual one takes one statement, and looks as any other."""

import pytest

from taskharbor.drivers.messages import Noted
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.errors import BrokenBond, LeaseLost
from taskharbor.model.bonds import MAX_NOTE_BYTES, MAX_NOTES
from taskharbor.model.job import JobRecord, Lease, Note
from taskharbor.model.settlement import Ack, Park
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import claim, new_job
from taskharbor.testing.conformance.relatives import bound, children, group
from tests.integration.postgres.test_children import Counted, states, taken

DONE, WAITS = JobState.COMPLETED, JobState.BLOCKED


async def note(driver: PostgresDriver, lease: Lease, name: str, data: bytes = b"1") -> object:
    [answer] = await driver.note([Note(name, data, lease=lease)])
    return answer


async def running(driver: PostgresDriver) -> JobRecord:
    await driver.enqueue([new_job()])
    [job] = await taken(driver, 1)
    return job


async def test_a_note_takes_one_statement(driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a known name needs a step, to read what it has."""
    job = await running(driver)
    asked = Counted(driver, monkeypatch)
    answers = [await note(driver, job.lease, name, name.encode()) for name in "ba"]
    assert asked.take() == ["other", "other"]
    again = await note(driver, job.lease, "b", b"2")
    assert asked.take() == ["other", "transaction"]

    first, second = [one for one in answers if isinstance(one, Noted)]
    assert isinstance(again, Noted)
    assert (again.data, again.at, again.version) == (b"b", first.at, second.version)
    [record] = await driver.get([job.id])
    assert record is not None
    assert [(one.name, one.data, one.at) for one in record.notes] == [
        ("b", b"b", first.at),
        ("a", b"a", second.at),
    ]
    assert (record.version, record.updated_at) == (job.version + 2, second.at)


async def test_a_lease_that_was_lost_takes_no_note(driver: PostgresDriver) -> None:
    job = await running(driver)
    await driver.settle([Ack(job.lease)])

    assert isinstance(await note(driver, job.lease, "late"), LeaseLost)
    [record] = await driver.get([job.id])
    assert record is not None
    assert record.notes == ()


async def test_a_child_with_a_note_is_counted_as_before(driver: PostgresDriver) -> None:
    root = group()
    kid, other = children(root, 2)
    await driver.enqueue([root, kid, other])
    job, rest = await taken(driver, 2)
    await note(driver, job.lease, "first")
    [record] = await driver.get([kid.id])
    assert record is not None
    assert (record.bonds, record.root) == (kid.bonds, root.id)
    await driver.settle([Ack(job.lease)])
    assert await states(driver, root, kid) == [WAITS, DONE]
    await driver.settle([Ack(rest.lease)])
    assert await states(driver, root) == [DONE]


async def test_notes_of_every_way_keep_their_order_and_their_limits(driver: PostgresDriver) -> None:
    """Some by the statement, some by a step, with a Park in between."""
    job = await running(driver)
    kid = bound(parent=job.id)
    await driver.enqueue([kid], by=job.lease)
    await note(driver, job.lease, "one", b"x" * 1000)
    await driver.note([Note("two", b"2", lease=job.lease), Note("three", b"3", lease=job.lease)])
    await driver.settle([Park(job.lease, (kid.id,), notes=(Note("four", b"4"),))])
    [job] = (await driver.exchange([Ack((await taken(driver, 1))[0].lease)], claim())).claimed
    part = MAX_NOTE_BYTES // 4
    for name in ("five", "six", "seven"):
        await note(driver, job.lease, name, b"x" * part)
    refused = await note(driver, job.lease, "eight", b"x" * (part - 1002))
    kept = await note(driver, job.lease, "eight", b"x" * (part - 1003))
    [record] = await driver.get([job.id])

    assert isinstance(refused, BrokenBond)
    assert isinstance(kept, Noted)
    assert record is not None
    assert [one.name for one in record.notes] == [
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
    ]


async def test_there_is_a_last_note(driver: PostgresDriver) -> None:
    job = await running(driver)
    await driver.note([Note(str(number), b"", lease=job.lease) for number in range(MAX_NOTES - 1)])

    assert isinstance(await note(driver, job.lease, "last"), Noted)
    assert isinstance(await note(driver, job.lease, "one more"), BrokenBond)
    assert isinstance(await note(driver, job.lease, "last"), Noted)
