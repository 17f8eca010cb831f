"""The job in its three shapes: NewJob goes in, JobRecord is stored, Job is what a handler sees."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from taskharbor.model.bonds import Bonds, Family
from taskharbor.model.state import JobState

RunAtRule = bool | Literal["if_later", "if_earlier"]

NO_TIME = timedelta(0)
DEFAULT_QUEUE = "default"
DEFAULT_MAX_STALLS = 3  # what the client writes by default; a driver adds nothing
FAILURE_TYPE = "taskharbor.failed"


class FailureKind:
    """Why a job failed: the values of `JobRecord.failure_kind`."""

    ERROR = "error"
    TIMEOUT = "timeout"
    STALLED = "stalled"
    UNRECOVERABLE = "unrecoverable"
    NO_HANDLER = "no_handler"
    INVALID_PAYLOAD = "invalid_payload"
    CHILD_FAILED = "child_failed"
    SKIPPED = "skipped"  # cancelled: what it comes after did not end as it needs
    STOPPED = "stopped"  # cancelled with its family


class Update(msgspec.Struct, frozen=True):
    """What an enqueue may change when a job of its key already waits (model of keyed jobs).

    `data` covers type, payload, headers, timeout, priority and requires; `retry` covers
    max_attempts, max_stalls, min_backoff and max_backoff. `reset_counts` follows `data`
    unless it is set. Id, creation time and place always stay.
    """

    data: bool = True
    run_at: RunAtRule = True
    retry: bool = True
    reset_counts: bool | None = None

    @property
    def resets_counts(self) -> bool:
        return self.data if self.reset_counts is None else self.reset_counts


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One job on its way into a store: complete, encoded, with its id already made."""

    id: str
    type: str
    payload: bytes = b""
    queue: str = DEFAULT_QUEUE
    key: bytes | None = None
    update: Update | None = None
    idempotency_key: bytes | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    priority: int = 0
    requires: str = "any"
    run_at: datetime | None = None
    delay: timedelta | None = None
    timeout: timedelta = NO_TIME
    max_attempts: int = 0
    max_stalls: int = 0
    min_backoff: timedelta | None = None
    max_backoff: timedelta | None = None
    bonds: Bonds | None = None


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The time-limited right to run one job. The token proves it; the fence orders it.

    `fence` is for the handler's own writes: it only ever grows for a job. `queue` helps stores
    that keep queues apart to find the job; it proves nothing.
    """

    job_id: str
    token: str
    fence: int = 0
    expires_at: datetime | None = None
    worker_id: str | None = None
    queue: str | None = None


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a handler remembers of one step, under a name. Stored once, under the lease of the job."""

    name: str
    data: bytes
    at: datetime | None = None
    lease: Lease | None = None


class AttemptRecord(msgspec.Struct, frozen=True, gc=False):
    """One attempt that was not a first-try success, kept in the job's history."""

    fence: int
    worker_id: str
    started_at: datetime
    ended_at: datetime
    outcome: str  # completed, retried, failed, stalled, cancelled, released
    error: str | None = None
    error_class: str | None = None  # module.qualname of the exception, where there was one


class Progress(msgspec.Struct, frozen=True):
    """The progress that a running handler reports: a fraction from 0 to 1, and a text."""

    fraction: float
    text: str = ""


class Avoid(msgspec.Struct, frozen=True):
    """The workers that may not run a copy: `worker` never, `others` not before `until`."""

    worker: str
    until: datetime | None = None
    others: tuple[str, ...] = ()


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A job as it is stored. Immutable: every change makes a new record with a higher `version`."""

    id: str
    seq: int
    type: str
    queue: str
    state: JobState
    payload: bytes
    created_at: datetime
    updated_at: datetime
    version: int = 1
    key: bytes | None = None
    idempotency_key: bytes | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    priority: int = 0
    requires: str = "any"
    run_at: datetime | None = None
    timeout: timedelta = NO_TIME
    attempts: int = 0
    max_attempts: int = 0
    stalls: int = 0
    max_stalls: int = 0
    starts: int = 0
    min_backoff: timedelta | None = None
    max_backoff: timedelta | None = None
    token: str | None = None  # only reserve hands it out; looking never shows it
    fence: int = 0
    lease_expires_at: datetime | None = None
    worker_id: str | None = None
    settled_token: str | None = None
    cancel_requested: bool = False
    last_error: str | None = None
    failed_at: datetime | None = None
    failure_kind: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    result: bytes | None = None
    progress: Progress | None = None
    history: tuple[AttemptRecord, ...] = ()
    update: Update | None = None  # the flags that a blocked job keeps for a later merge
    speculates_on: str | None = None
    avoid: Avoid | None = None  # only of a copy
    bonds: Bonds | None = None
    family: Family | None = None
    root: str | None = None  # the topmost parent of a child
    notes: tuple[Note, ...] = ()  # only reserve and get show them

    @property
    def lease(self) -> Lease:
        """The lease of a record fresh from `reserve`."""
        if self.token is None:
            raise ValueError(f"job {self.id} was not handed out under a lease")
        return Lease(self.id, self.token, self.fence, self.lease_expires_at, self.worker_id, self.queue)

    @property
    def eligible_at(self) -> datetime:
        """Since when it may run: the second part of the order of claims."""
        return self.created_at if self.run_at is None else self.run_at


class Job(msgspec.Struct, frozen=True, gc=False):
    """What a handler sees of its job: everything it may want to know, nothing about the lease."""

    id: str
    type: str
    queue: str
    payload: bytes
    headers: dict[str, str]
    key: bytes | None
    priority: int
    requires: str
    run_at: datetime | None
    timeout: timedelta
    created_at: datetime
    attempts: int
    max_attempts: int
    stalls: int
    max_stalls: int = 0
    """How many stalls it may have; 0 means any number."""
    starts: int = 1
    """How often it was claimed, this time included."""


def job_of(record: JobRecord) -> Job:
    """The handler's view of a stored record."""
    return Job(  # by place: Python passes more than 15 keywords as a dict, at three times the cost
        record.id,
        record.type,
        record.queue,
        record.payload,
        record.headers,
        record.key,
        record.priority,
        record.requires,
        record.run_at,
        record.timeout,
        record.created_at,
        record.attempts,
        record.max_attempts,
        record.stalls,
        record.max_stalls,
        record.starts,
    )


def without_payload(job: JobRecord) -> JobRecord:
    """The record without payload, result and notes, for listings that do not show them."""
    if not job.payload and job.result is None and not job.notes:
        return job
    return msgspec.structs.replace(job, payload=b"", result=None, notes=())
