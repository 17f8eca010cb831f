"""What goes out, as types: the OpenAPI document is made of them.

The values are made by `drivers/views.py`, for the command line as well; a test holds the two together.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from taskharbor.client.why import Reason
from taskharbor.drivers.messages import CancelResult, EnqueueResult
from taskharbor.model.schedule import Misfire
from taskharbor.model.state import JobState
from taskharbor.web.api.schemas import InstantText, JobId, Name


class Out(msgspec.Struct, frozen=True, kw_only=True):
    """What goes out: callers ignore fields that they do not know."""


class EnqueuedOut(Out, frozen=True, kw_only=True):
    """What became of one job: `id` is the job that now carries it."""

    id: JobId
    result: EnqueueResult
    at: InstantText
    version: int


class BatchOut(Out, frozen=True, kw_only=True):
    items: list[EnqueuedOut]


class ProgressOut(Out, frozen=True, kw_only=True):
    fraction: float
    text: str


class AttemptOut(Out, frozen=True, kw_only=True):
    fence: int
    worker_id: str
    started_at: InstantText
    ended_at: InstantText
    outcome: str
    error: str | None


class JobOut(Out, frozen=True, kw_only=True):
    """A job in a list."""

    id: JobId
    type: Name
    queue: Name
    state: JobState
    key: str | None
    priority: int
    requires: Name
    attempts: int
    max_attempts: int | None
    stalls: int
    max_stalls: int | None
    starts: int
    run_at: InstantText | None
    created_at: InstantText
    started_at: InstantText | None
    finished_at: InstantText | None
    updated_at: InstantText
    failed_at: InstantText | None
    last_error: str | None
    failure_kind: str | None
    worker_id: str | None
    lease_expires_at: InstantText | None
    cancel_requested: bool
    progress: ProgressOut | None
    version: int


class WholeJobOut(JobOut, frozen=True, kw_only=True):
    """A job with everything that is known about it.

    A payload or result that is no JSON comes as base64 under `payload_base64` or `result_base64`.
    """

    seq: int
    fence: int
    idempotency_key: str | None
    headers: dict[str, str]
    timeout_s: float | None
    min_backoff_s: float | None
    max_backoff_s: float | None
    speculates_on: str | None
    history: list[AttemptOut]
    payload: Any = UNSET
    payload_base64: str | UnsetType = UNSET
    result: Any = UNSET
    result_base64: str | UnsetType = UNSET


class JobsOut(Out, frozen=True, kw_only=True):
    """A page. It may be short, even empty, and still have a cursor: the work per page is bounded."""

    items: list[JobOut]
    next_cursor: str | None


class ResultOut(Out, frozen=True, kw_only=True):
    """How a job ended; before that, its state so far."""

    id: JobId
    type: Name
    queue: Name
    state: JobState
    is_over: bool
    last_error: str | None
    failure_kind: str | None
    finished_at: InstantText | None
    result: Any = UNSET
    result_base64: str | UnsetType = UNSET


class WhyOut(Out, frozen=True, kw_only=True):
    """Why a job is where it is: a reason to program against, and a sentence."""

    id: JobId
    type: Name
    queue: Name
    state: JobState
    reason: Reason
    text: str
    until: InstantText | None
    facts: list[str]
    hint: str | None


class CancelOut(Out, frozen=True, kw_only=True):
    """`requested`: it runs, and its worker will be told."""

    id: JobId
    result: CancelResult
    state: JobState | None


class RetryOut(Out, frozen=True, kw_only=True):
    id: JobId
    state: JobState
    version: int


class RetriedOut(Out, frozen=True, kw_only=True):
    id: str
    result: Literal["retried", "not_found", "refused"]
    state: JobState | None
    note: str | None


class RetryDeadOut(Out, frozen=True, kw_only=True):
    items: list[RetriedOut]


class RateOut(Out, frozen=True, kw_only=True):
    count: int
    per_s: float


class RetentionOut(Out, frozen=True, kw_only=True):
    completed_s: float | None
    failed_s: float | None
    cancelled_s: float | None


class RulesOut(Out, frozen=True, kw_only=True):
    paused: bool
    max_running: int | None
    enqueue_rate: RateOut | None
    execute_rate: RateOut | None
    fail_queue: str | None
    retention: RetentionOut | None


class CountsOut(Out, frozen=True, kw_only=True):
    scheduled: int
    ready: int
    blocked: int
    running: int
    completed: int
    failed: int
    cancelled: int


class QueueOut(RulesOut, frozen=True, kw_only=True):
    """A queue: its numbers, its rules, and for how long its oldest ready job has been waiting."""

    name: str
    scheduled: int
    ready: int
    blocked: int
    running: int
    completed: int
    failed: int
    cancelled: int
    oldest_s: float | None


class QueuesOut(Out, frozen=True, kw_only=True):
    items: list[QueueOut]


class CancelWaitingOut(Out, frozen=True, kw_only=True):
    """Whether a job of the key waited."""

    cancelled: bool


class ScaleOut(Out, frozen=True, kw_only=True):
    """What an autoscaler needs. Running jobs count, so that no busy worker is taken away."""

    desired_workers: int
    ready: int
    running: int
    oldest_s: float | None


class WorkerOut(Out, frozen=True, kw_only=True):
    id: str
    name: str
    kind: str
    queues: list[str]
    lanes: list[str]
    types: list[str]
    concurrency: int
    running: list[str]
    host: str
    pid: int
    labels: dict[str, str]
    is_quiet: bool
    latency_s: float | None
    samples: int
    started_at: InstantText | None
    seen_at: InstantText
    expires_at: InstantText


class WorkersOut(Out, frozen=True, kw_only=True):
    """The workers whose report has not lapsed, fastest first."""

    items: list[WorkerOut]


class ScheduleOut(Out, frozen=True, kw_only=True):
    name: str
    cron: str | None
    every_s: float | None
    timezone: str
    misfire: Misfire
    paused: bool
    type: str
    queue: str
    last_tick_at: InstantText
    fired_at: InstantText | None
    declared_at: InstantText | None
    is_undeclared: bool
    next_tick_at: InstantText | None


class SchedulesOut(Out, frozen=True, kw_only=True):
    items: list[ScheduleOut]


class TypeOut(Out, frozen=True, kw_only=True):
    type: str
    usual_s: float | None
    samples: int


class WorkerTotalsOut(Out, frozen=True, kw_only=True):
    count: int
    slots: int
    busy: int


class StoreOut(Out, frozen=True, kw_only=True):
    driver: str
    durability: str
    at: InstantText


class StatsOut(Out, frozen=True, kw_only=True):
    """Numbers over all queues that the caller may see."""

    version: str
    counts: CountsOut
    queues: int
    workers: WorkerTotalsOut
    types: list[TypeOut]
    store: StoreOut


class ProbeOut(Out, frozen=True, kw_only=True):
    status: Literal["ok"]
