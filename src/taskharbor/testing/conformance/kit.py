"""What the cases are built from: a moment far away, jobs with repeatable ids, and a look before and after."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Claim, Counts, Enqueued, Extended, Query, Settled
from taskharbor.errors import LeaseLost
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import JobRecord, Lease, NewJob
from taskharbor.model.limits import RateLimit
from taskharbor.model.settlement import Ack, Cancelled, Fail, Release, Retry, Settlement, Stalled
from taskharbor.model.state import JobState

# Years away from every real clock: a driver that looks at its own instead of `now` is caught.
START = datetime(2093, 5, 17, 9, 30, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=30)

QUEUE = "kit"
OTHER_QUEUE = "kit-other"
TYPE = "kit.job"
WORKER = "worker-a"
OTHER_WORKER = "worker-b"
ANY_LANE = ("any",)
WRONG_TOKEN = "0" * 32

entropy = Entropy(20930517)
UNKNOWN_ID = entropy.job_id(START)


class Moment:
    """A clock that does not move until the case moves it."""

    def __init__(self, at: datetime = START) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def advance(self, span: timedelta) -> datetime:
        """Move on by `span`, which may be negative, and say what time it is."""
        self.at += span
        return self.at

    def move_to(self, at: datetime) -> datetime:
        self.at = at
        return at


either_clock = pytest.mark.parametrize("now", [START, None], ids=["given-clock", "own-clock"])
"""For a case that must hold with an instant from outside and with the store's clock, as in production."""


def requires(driver: Driver, capability: str) -> None:
    """Skip the case unless the driver declares this ability."""
    if not getattr(driver.capabilities, capability):
        pytest.skip(f"this driver does not declare {capability}")


# ------------------------------------------------------------------ jobs


def new_job(**fields: Any) -> NewJob:
    """A job for the queue of the kit, with a fresh id, changed by `fields`."""
    given: dict[str, Any] = {"id": new_id(), "type": TYPE, "queue": QUEUE} | fields
    return NewJob(**given)


def new_jobs(count: int, **fields: Any) -> list[NewJob]:
    return [new_job(**fields) for _ in range(count)]


def new_id() -> str:
    return entropy.job_id(START)


async def enqueue(driver: Driver, *jobs: NewJob, now: datetime | None = START) -> list[str]:
    """Enqueue these jobs in one call and give the ids that carry them."""
    return [answer.id for answer in await driver.enqueue(jobs, now=now)]


async def enqueue_one(driver: Driver, *, now: datetime | None = START, **fields: Any) -> Enqueued:
    """Enqueue `new_job(**fields)` and give the answer."""
    [answer] = await driver.enqueue([new_job(**fields)], now=now)
    return answer


def claim(
    *,
    queues: Sequence[str] = (QUEUE,),
    limit: int = 1,
    worker_id: str = WORKER,
    lease_for: timedelta = LEASE,
    lanes: Sequence[str] = ANY_LANE,
    types: tuple[str, ...] | None = None,
    rate: RateLimit | None = None,
) -> Claim:
    return Claim(
        queues=tuple(queues),
        worker_id=worker_id,
        limit=limit,
        lease_for=lease_for,
        lanes=tuple(lanes),
        types=types,
        rate=rate,
    )


async def reserve(driver: Driver, *, now: datetime | None = START, **fields: Any) -> list[JobRecord]:
    """Reserve by `claim(**fields)`."""
    return (await driver.reserve(claim(**fields), now=now)).jobs


async def reserve_one(driver: Driver, *, now: datetime | None = START, **fields: Any) -> JobRecord:
    """Reserve, and insist on exactly one job."""
    [job] = await reserve(driver, now=now, **fields)
    return job


async def running(
    driver: Driver,
    *,
    now: datetime = START,
    lease_for: timedelta = LEASE,
    worker_id: str = WORKER,
    **fields: Any,
) -> JobRecord:
    """A job that was just enqueued and reserved: the record as `reserve` gave it, token included."""
    job = new_job(**fields)
    await driver.enqueue([job], now=now)
    taken = await reserve_one(
        driver, now=now, lease_for=lease_for, worker_id=worker_id, queues=(job.queue,), lanes=(job.requires,)
    )
    assert taken.id == job.id, "another job was first; reserve by hand where several wait"
    return taken


async def in_state(driver: Driver, state: JobState, *, now: datetime = START, **fields: Any) -> JobRecord:
    """A job that is in this state at `now`, as `get` shows it."""
    match state:
        case JobState.READY:
            return await get_one(driver, (await enqueue_one(driver, now=now, **fields)).id, now=now)
        case JobState.SCHEDULED:
            answer = await enqueue_one(driver, now=now, run_at=now + HOUR, **fields)
            return await get_one(driver, answer.id, now=now)
        case JobState.BLOCKED:
            key = fields.pop("key", new_id().encode())
            await running(driver, now=now, key=key, **fields)
            answer = await enqueue_one(driver, now=now, key=key, **fields)
            return await get_one(driver, answer.id, now=now)
    job = await running(driver, now=now, **fields)
    match state:
        case JobState.COMPLETED:
            await settle_one(driver, Ack(job.lease), now=now)
        case JobState.FAILED:
            await settle_one(driver, Fail(job.lease, "broken"), now=now)
        case JobState.CANCELLED:
            await settle_one(driver, Cancelled(job.lease, "not wanted"), now=now)
    return await get_one(driver, job.id, now=now)


# ------------------------------------------------------------------ attempts

ENDS: dict[str, type[Settlement]] = {
    "Ack": Ack,
    "Retry": Retry,
    "Fail": Fail,
    "Stalled": Stalled,
    "Cancelled": Cancelled,
    "Release": Release,
}
"""Every settlement by name: `ENDS["Ack"](lease)` is one with nothing but its lease."""


async def settle_one(driver: Driver, settlement: Settlement, *, now: datetime | None = START) -> Settled:
    """Settle, and insist that it was accepted."""
    [answer] = await driver.settle([settlement], now=now)
    assert isinstance(answer, Settled), answer
    assert (answer.id, answer.at) == (settlement.lease.job_id, now or answer.at)
    return answer


async def refused(driver: Driver, settlement: Settlement, *, now: datetime = START) -> LeaseLost:
    """Settle, and insist that it was refused; the error."""
    [answer] = await driver.settle([settlement], now=now)
    assert isinstance(answer, LeaseLost), answer
    assert answer.job_id == settlement.lease.job_id
    return answer


async def extend_one(
    driver: Driver, lease: Lease, lease_for: timedelta = LEASE, *, now: datetime = START
) -> Extended:
    """Extend one lease, and insist that it was accepted."""
    [answer] = await driver.extend_leases([lease], lease_for, now=now)
    assert isinstance(answer, Extended), answer
    return answer


# ------------------------------------------------------------------ looking


async def get_one(driver: Driver, job_id: str, *, now: datetime = START) -> JobRecord:
    """The record of a job that must exist."""
    [job] = await driver.get([job_id], now=now)
    assert job is not None, f"job {job_id} is not there"
    return job


async def state_of(driver: Driver, job_id: str, *, now: datetime = START) -> JobState:
    return (await get_one(driver, job_id, now=now)).state


async def find_all(driver: Driver, query: Query | None = None, *, now: datetime = START) -> list[JobRecord]:
    """Every page of a listing, in one list."""
    query = query or Query(limit=1000)
    jobs: list[JobRecord] = []
    while True:
        page = await driver.find(query, now=now)
        jobs += page.jobs
        if page.next_cursor is None:
            return jobs
        query = msgspec.structs.replace(query, cursor=page.next_cursor)


async def found_ids(driver: Driver, *, now: datetime = START, **fields: Any) -> list[str]:
    """The ids that `find(Query(**fields))` lists."""
    asked: dict[str, Any] = {"limit": 1000} | fields
    return [job.id for job in await find_all(driver, Query(**asked), now=now)]


class StoreSnapshot(msgspec.Struct, frozen=True):
    """The whole records of some jobs, and the numbers of every queue."""

    records: list[JobRecord | None]
    counts: dict[str, Counts]


async def snapshot(driver: Driver, *ids: str, now: datetime = START) -> StoreSnapshot:
    return StoreSnapshot(await driver.get(ids, now=now), await driver.count(now=now))


@asynccontextmanager
async def unchanged(driver: Driver, *ids: str, now: datetime = START) -> AsyncIterator[None]:
    """Insist that these records stay equal in every field, and that no queue gains or loses a job."""
    before = await snapshot(driver, *ids, now=now)
    yield
    assert await snapshot(driver, *ids, now=now) == before


@contextmanager
def row(name: object) -> Iterator[None]:
    """Name the row of a table when it fails: a case that walks a table in one store is one test."""
    try:
        yield
    except BaseException as error:  # what pytest.raises misses is no Exception
        error.add_note(f"in the row: {name}")
        raise
