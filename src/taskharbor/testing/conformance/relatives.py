"""What the cases about families are built from: jobs with bonds, and jobs brought to their end one by one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Settled
from taskharbor.model.bonds import Bonds, Family
from taskharbor.model.job import JobRecord, Lease, NewJob
from taskharbor.model.settlement import Ack, Cancelled, Fail, Settlement
from taskharbor.model.state import JobState
from taskharbor.testing.conformance.kit import START, get_one, new_job, reserve, settle_one

_BONDS = set(Bonds.__struct_fields__)


def bound(**fields: Any) -> NewJob:
    """A new job whose fields may be those of its bonds."""
    bonds = {name: fields.pop(name) for name in list(fields) if name in _BONDS}
    return new_job(bonds=Bonds(**bonds), **fields)


def after(*others: NewJob, **fields: Any) -> NewJob:
    """A job that comes after these, with the same parent as the first."""
    parent = others[0].bonds.parent if others[0].bonds is not None else None
    return bound(**({"parent": parent, "after": tuple(other.id for other in others)} | fields))


def children(parent: NewJob, count: int, **fields: Any) -> list[NewJob]:
    return [bound(parent=parent.id, **fields) for _ in range(count)]


def group(**fields: Any) -> NewJob:
    """A job that is over with its children."""
    return bound(done_by="children", **fields)


async def store(driver: Driver, *jobs: NewJob, by: Lease | None = None, now: datetime = START) -> list[str]:
    """Store these in one call: what happened to each."""
    return [answer.result.value for answer in await driver.enqueue(jobs, by=by, now=now)]


async def follow(driver: Driver, *, now: datetime = START) -> None:
    """Have everything carried out that is owed."""
    while (await driver.promote(now=now)).count:
        pass


async def take(driver: Driver, *jobs: NewJob, now: datetime = START, **fields: Any) -> list[JobRecord]:
    """Claim everything there is, and insist that it is exactly these jobs; in this order."""
    taken = {job.id: job for job in await reserve(driver, limit=1000, now=now, **fields)}
    assert set(taken) == {job.id for job in jobs}
    return [taken[job.id] for job in jobs]


async def ack(driver: Driver, *jobs: NewJob, result: bytes | None = None, now: datetime = START) -> None:
    """These, and only these, are claimed, and completed one after the other."""
    for taken in await take(driver, *jobs, now=now):
        await settle_one(driver, Ack(taken.lease, result), now=now)
    await follow(driver, now=now)


async def fail(driver: Driver, *jobs: NewJob, now: datetime = START) -> None:
    for taken in await take(driver, *jobs, now=now):
        await settle_one(driver, Fail(taken.lease, "broken"), now=now)
    await follow(driver, now=now)


async def end(driver: Driver, job: NewJob, state: JobState, *, now: datetime = START) -> Settled:
    """Claim the only job there is, and end it in this state."""
    [taken] = await take(driver, job, now=now)
    ends: dict[JobState, Settlement] = {
        JobState.COMPLETED: Ack(taken.lease),
        JobState.FAILED: Fail(taken.lease, "broken"),
        JobState.CANCELLED: Cancelled(taken.lease, "not wanted"),
    }
    answer = await settle_one(driver, ends[state], now=now)
    await follow(driver, now=now)
    return answer


async def states(driver: Driver, *jobs: NewJob, now: datetime = START) -> list[str]:
    records = await driver.get([job.id for job in jobs], now=now)
    return [record.state.value if record is not None else "gone" for record in records]


async def record(driver: Driver, job: NewJob, *, now: datetime = START) -> JobRecord:
    return await get_one(driver, job.id, now=now)


async def family(driver: Driver, job: NewJob, *, now: datetime = START) -> Family:
    found = (await record(driver, job, now=now)).family
    assert found is not None
    return found


async def counts(driver: Driver, job: NewJob) -> tuple[int, int, int, int, int]:
    """total, open, failed, excused, cancelled"""
    of = await family(driver, job)
    return of.total, of.open, of.failed, of.excused, of.cancelled


def ids(jobs: Sequence[NewJob]) -> tuple[str, ...]:
    return tuple(job.id for job in jobs)
