"""What the verbs of a driver take and return, besides jobs and settlements."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, Protocol, Self

import msgspec

from taskharbor.errors import InvalidArgument, LeaseLost, TaskHarborError
from taskharbor.model.bonds import FamilyEnd as FamilyEnd  # noqa: PLC0414 - a part of the answers, too
from taskharbor.model.checks import (
    MAX_BATCH,
    check_all_names,
    check_count,
    check_id,
    check_lease_for,
    check_new_jobs,
    check_worker_id,
)
from taskharbor.model.job import JobRecord, Lease, NewJob
from taskharbor.model.limits import RateLimit, check_rate
from taskharbor.model.presence import RoleLease as RoleLease  # noqa: PLC0414 - an answer of the contract, too
from taskharbor.model.queue import QueueRules
from taskharbor.model.state import JobState

MAX_PAGE = 1000
MAX_EXAMINED = 1000
"""How many jobs one page looks at, unless the query says otherwise."""


class EnqueueResult(StrEnum):
    """What an enqueue did with a job."""

    CREATED = "created"
    UPDATED = "updated"  # absorbed by the waiting or blocked job of its key
    BLOCKED = "blocked"  # stored, behind the running job of its key
    DUPLICATE = "duplicate"  # this id or idempotency key is known; nothing changed


class Enqueued(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What happened to one enqueued job: `id` is the job that now carries it."""

    id: str
    result: EnqueueResult
    at: datetime
    version: int
    ended: tuple[FamilyEnd, ...] = ()
    """What the call ended besides its items; in the last of its answers (on a cluster, of a slot) that is no
    error. A family comes behind those inside it; no other order is promised."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's request: up to `limit` jobs of these queues and lanes, each in this order.

    `types` narrows it to the types the worker knows. `rate` is the worker's own execute rate.
    """

    queues: tuple[str, ...]
    worker_id: str
    limit: int = 1
    lease_for: timedelta = timedelta(seconds=30)
    lanes: tuple[str, ...] = ("any",)
    types: tuple[str, ...] | None = None
    rate: RateLimit | None = None


def check_claim(claim: Claim) -> None:
    """Check a claim; the lease first, as in every verb."""
    check_lease_for(claim.lease_for)
    check_worker_id(claim.worker_id)
    check_count(claim.limit, "limit", least=1, most=MAX_BATCH)
    _check_names(claim.queues, "queues", "queue")
    _check_names(claim.lanes, "lanes", "lane")
    if claim.types is not None:
        _check_names(claim.types, "types", "type")
    if claim.rate is not None:
        check_rate(claim.rate, "rate")


def _check_names(names: tuple[str, ...], what: str, one: str) -> None:
    if not isinstance(names, tuple) or not names:
        raise InvalidArgument(f"{what} must be a tuple with at least one {one}")
    check_all_names(names, one)
    if len(set(names)) != len(names):
        raise InvalidArgument(f"{what} names a {one} twice")


class Extended(msgspec.Struct, frozen=True, tag=True):
    """A lease that was extended; use this one from now on. `cancel_requested`: stop the handler."""

    lease: Lease
    cancel_requested: bool
    at: datetime
    version: int


class Settled(msgspec.Struct, frozen=True, tag=True, gc=False, omit_defaults=True):
    """A settlement that was stored, and the resulting state. `ended`: see Enqueued."""

    id: str
    state: JobState
    at: datetime
    version: int
    ended: tuple[FamilyEnd, ...] = ()


class ReclaimResult(StrEnum):
    """What became of a job whose lease expired."""

    REQUEUED = "requeued"
    MERGED = "merged"  # one waiting job out of this one and the one blocked behind it
    FAILED = "failed"  # its stalls are used up
    CANCELLED = "cancelled"  # a cancel had been requested


class Reclaimed(msgspec.Struct, frozen=True, omit_defaults=True):
    """One expired lease that this call, and no other, ended."""

    id: str
    queue: str
    type: str
    result: ReclaimResult
    stalls: int
    at: datetime
    version: int
    is_copy: bool = False
    ended: tuple[FamilyEnd, ...] = ()
    """See Enqueued."""

    @property
    def is_given_up(self) -> bool:
        """The job is a dead letter now. Not a copy: when one ends, its original goes on."""
        return self.result is ReclaimResult.FAILED and not self.is_copy


def reclaimed(job: JobRecord, at: datetime, *, had_blocked: bool) -> Reclaimed:
    """The answer for one expired lease, from the record as it is after the step.

    `had_blocked`: before the step, a job was blocked behind the same key.
    """
    if job.state is JobState.FAILED:
        result = ReclaimResult.FAILED
    elif job.state is JobState.CANCELLED:
        result = ReclaimResult.CANCELLED
    else:
        result = ReclaimResult.MERGED if had_blocked else ReclaimResult.REQUEUED
    is_copy = job.speculates_on is not None
    return Reclaimed(job.id, job.queue, job.type, result, job.stalls, at, job.version, is_copy)


def given_up_in(answers: Iterable[Reclaimed]) -> tuple[Reclaimed, ...]:
    """Those of them that became dead letters."""
    return tuple(answer for answer in answers if answer.is_given_up)


class Claimed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of a claim: the jobs it got, and the jobs it gave up on the way.

    A job in `given_up` is a dead letter: its lease ran out once more than allowed, and this claim found
    that. No attempt of it is left to be settled, so the caller is the only one who can count and log it.
    """

    jobs: list[JobRecord]
    given_up: tuple[Reclaimed, ...] = ()
    ended: tuple[FamilyEnd, ...] = ()
    """What its reclaims and the consequences it carried out have ended."""


class Exchanged(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answers of an exchange. `error` is why nothing was claimed, if the claim failed.

    `ended` is what the claim ended; what the settlements ended is in their answers.
    """

    settled: list[Settled | LeaseLost]
    claimed: list[JobRecord]
    error: TaskHarborError | None = None
    given_up: tuple[Reclaimed, ...] = ()
    ended: tuple[FamilyEnd, ...] = ()


class Promoted(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many jobs a promote moved or looked at, and what the consequences it carried out have ended."""

    count: int
    ended: tuple[FamilyEnd, ...] = ()


class CancelResult(StrEnum):
    """What a cancel did to a job."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"  # it runs; its worker will be notified
    ALREADY_OVER = "already_over"
    NOT_FOUND = "not_found"


class CancelAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a cancel did to one id. `state` is the stored state after it, None when not found.

    `ended`: see Enqueued. A job with children that is cancelled at once is in it, too.
    """

    id: str
    result: CancelResult
    state: JobState | None
    at: datetime
    version: int
    ended: tuple[FamilyEnd, ...] = ()


class Requeued(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A finished job that waits again. `ended`: see Enqueued; it may be skipped again at once."""

    id: str
    state: JobState
    at: datetime
    version: int
    ended: tuple[FamilyEnd, ...] = ()


class Deleted(msgspec.Struct, frozen=True, tag=True):
    """A finished job that is gone."""

    id: str
    at: datetime


class Resolution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of the own work of a job that is done by a call: a result, or an error.

    `new` is stored first if there is no job of this id yet.
    """

    id: str
    result: bytes | None = None
    error: str | None = None
    new: NewJob | None = None


def check_resolutions(items: Sequence[Resolution], now: datetime, max_payload: int) -> None:
    """Refuse resolutions that no store takes, before one is asked."""
    if len(items) > MAX_BATCH:
        raise InvalidArgument(f"{len(items)} items in one call; {MAX_BATCH} are allowed, send them in parts")
    for item in items:
        check_id(item.id)
        if item.result is not None and len(item.result) > max_payload:
            raise InvalidArgument(f"a result of {len(item.result)} bytes is over the limit of {max_payload}")
        if item.result is not None and item.error is not None:
            raise InvalidArgument("a job is resolved with a result or an error, not with both")
        if item.new is not None:
            check_new_jobs([item.new], now, max_payload)
            is_of_call = item.new.bonds is not None and item.new.bonds.done_by == "call"
            if item.new.id != item.id or not is_of_call:
                raise InvalidArgument("`new` is the job of this id, done by a call")


class Resolved(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A job whose own work is over by this call, or was over by the same call before.

    `ended`: see Enqueued.
    """

    id: str
    state: JobState
    at: datetime
    version: int
    ended: tuple[FamilyEnd, ...] = ()


class Noted(msgspec.Struct, frozen=True, tag=True):
    """What the store keeps under the name of a note: this data, or what was there before."""

    id: str
    name: str
    data: bytes
    at: datetime
    version: int


class Speculated(msgspec.Struct, frozen=True, tag=True):
    """A copy that was started beside a slow run."""

    id: str
    copy_id: str
    at: datetime
    version: int


class Query(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which jobs to list. Everything given must hold; copies and aliases are never listed."""

    queue: str | None = None
    states: tuple[JobState, ...] | None = None
    type: str | None = None
    key: bytes | None = None
    worker_id: str | None = None
    failure_kind: str | None = None
    newest_first: bool = False
    limit: int = 50
    cursor: str | None = None
    payloads: bool = True
    """False leaves payloads and results unread, which may be a megabyte each; the jobs come without them."""
    order_by: Literal["seq", "ended"] = "seq"
    """By enqueue, or by end: then only jobs that have ended are listed. `newest_first` reverses both."""
    ended_after: datetime | None = None
    """Only jobs that ended later than this."""
    examine: int = MAX_EXAMINED
    """The most jobs to look at for this page; on a cluster, per queue. It ends there, full or not."""
    parent: str | None = None
    """Only the children of this job (capability `workflows`)."""


class Page(msgspec.Struct, frozen=True):
    """Some jobs in the order asked for, and where to continue; no `next_cursor` means that was all.

    A page may be short, even empty, and still have a `next_cursor`: the work per page is bounded.
    """

    jobs: list[JobRecord]
    next_cursor: str | None = None
    examined: int = 0
    """How many jobs the store looked at to fill it."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of jobs of a queue per state, as they read at `now`."""

    scheduled: int = 0
    ready: int = 0
    blocked: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def waiting(self) -> int:
        return self.scheduled + self.ready + self.blocked

    @property
    def total(self) -> int:
        return self.waiting + self.running + self.completed + self.failed + self.cancelled


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One queue: its own rules, its counts, and since when its oldest ready job could run.

    `throttled_until` is when its used-up execute rate has room again; None if it has now.
    """

    queue: str
    rules: QueueRules
    counts: Counts
    oldest_ready_at: datetime | None = None
    throttled_until: datetime | None = None


class WakeupKind(StrEnum):
    """Why a worker is woken."""

    WORK = "work"
    CANCEL = "cancel"


class Wakeup(msgspec.Struct, frozen=True):
    """There may be work in `queue`, or `job_id` was cancelled while this worker runs it."""

    kind: WakeupKind
    queue: str | None = None
    job_id: str | None = None


class Wakeups(Protocol):
    """Wake-ups as they come. It listens from creation until it is closed."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Wakeup: ...

    async def aclose(self) -> None:
        """Stop listening. Safe to call twice."""
        ...


class Inbox:
    """The unread wake-ups of one listener, in the order they came. One that is unread is not added again.

    Not thread-safe: call `put` and `end` in the event loop that made it.
    """

    def __init__(self) -> None:
        self._unread: dict[Wakeup, None] = {}
        self._news = asyncio.Event()
        self._is_closed = False

    def put(self, wakeup: Wakeup) -> None:
        """Add a wake-up, unless the same one is still unread."""
        self._unread[wakeup] = None
        self._news.set()

    def end(self) -> None:
        """No more wake-ups: a reader that waits for one stops."""
        self._is_closed = True
        self._unread.clear()
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Wakeup:
        while not self._unread:
            if self._is_closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        wakeup = next(iter(self._unread))
        del self._unread[wakeup]
        return wakeup

    async def aclose(self) -> None:
        """Stop listening. Safe to call twice."""
        self.end()


class DriverInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver reports about its store.

    `durability` goes from D0, gone with the process, to D3, safe after a power loss.
    """

    driver: str
    store: str
    location: str
    durability: str
    schema: str
    at: datetime
    details: dict[str, str] = msgspec.field(default_factory=dict)
    owed: int = 0
    """How many consequences wait to be carried out (capability `workflows`); at most 1,000 are counted."""
