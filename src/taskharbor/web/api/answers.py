"""Answers of the HTTP API beyond the views that it shares with the command line: pages, totals, results."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from taskharbor.drivers.messages import CancelResult, Counts, EnqueueResult
from taskharbor.drivers.wire import Role
from taskharbor.model.common_arguments import InCommon
from taskharbor.model.log_series import Series
from taskharbor.model.state import JobState
from taskharbor.views import (
    InstantText,
    JobDetails,
    ListedJob,
    QueueView,
    ScheduleView,
    StoreView,
    View,
    WorkerView,
)
from taskharbor.web.api.schemas import JobId, Name


class EnqueuedOut(View, frozen=True, kw_only=True):
    """What became of one job: `id` is the job that now carries it."""

    id: JobId
    result: EnqueueResult
    at: InstantText
    version: int


class BatchOut(View, frozen=True, kw_only=True):
    items: list[EnqueuedOut]


class JobsOut(View, frozen=True, kw_only=True):
    """A page. It may be short, even empty, and still have a cursor: the work per page is bounded."""

    items: list[ListedJob]
    next_cursor: str | None
    looked_at: int
    """Jobs that were looked at for this page."""
    looked_back_to: InstantText | None
    """When the last of them was enqueued; null if unknown."""
    is_all: bool
    """Whether there are no more jobs to look at."""


class CountOut(View, frozen=True, kw_only=True):
    """How many jobs match; at least so many, if it is not `exact`."""

    count: int
    exact: bool


class TypesOut(View, frozen=True, kw_only=True):
    items: list[str]


class SearchWordsOut(View, frozen=True, kw_only=True):
    """What may follow in a search."""

    fields: dict[str, str]
    """Each as it is written, and a hint; the most useful first."""
    states: list[str]
    queues: list[str]
    types: list[str]
    workers: list[str]


class ResultOut(View, frozen=True, kw_only=True):
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


class CancelOut(View, frozen=True, kw_only=True):
    """`requested`: it is running, and its worker will stop it."""

    id: JobId
    result: CancelResult
    state: JobState | None


class RetryOut(View, frozen=True, kw_only=True):
    id: JobId
    state: JobState
    version: int


class RetriedOut(View, frozen=True, kw_only=True):
    id: str
    result: Literal["retried", "not_found", "refused"]
    state: JobState | None
    note: str | None


class RetryDeadOut(View, frozen=True, kw_only=True):
    items: list[RetriedOut]


class SkippedOut(View, frozen=True, kw_only=True):
    why: str
    count: int


class BulkOut(View, frozen=True, kw_only=True):
    """A bulk action, or the preview of one, which has no id and no state."""

    id: str | None
    action: str
    state: Literal["held", "running", "done", "stopped", "dropped"] | None
    starts_at: InstantText | None
    ended_at: InstantText | None
    count: int
    """Jobs that matched when it was asked for; at least so many, if it is not `exact`."""
    exact: bool
    of: int
    done: int
    skipped: list[SkippedOut]
    """Jobs that are left as they are, by reason."""
    text: str
    """What else to know before it begins: what stays as it is, what a workflow does."""
    samples: list[ListedJob]
    note: str | None
    """Why it was stopped or dropped, if nobody asked for that."""
    at: InstantText | None = None
    """The store's time of a preview. Sent as `as_of`, the deed is for the jobs that were there then."""


class QueuesOut(View, frozen=True, kw_only=True):
    """`age_s`: how old the figures are. One look at the store is shared by all callers."""

    items: list[QueueView]
    age_s: float


class QueueOut(QueueView, frozen=True, kw_only=True):
    age_s: float
    text: str
    """Whether it keeps up, in a sentence."""


class CancelWaitingOut(View, frozen=True, kw_only=True):
    """Whether a job of the key waited."""

    cancelled: bool


class ScaleOut(View, frozen=True, kw_only=True):
    """What an autoscaler needs. Running jobs count, so that no busy worker is taken away."""

    desired_workers: int
    ready: int
    running: int
    oldest_s: float | None
    age_s: float


class LostOut(View, frozen=True, kw_only=True):
    """A worker whose report lapsed without a goodbye."""

    id: str
    name: str
    host: str
    seen_at: InstantText
    running: list[str]
    release: str


class WorkerOut(WorkerView, frozen=True, kw_only=True):
    """A live worker.

    `times_slower` is how many times as long its jobs took in the last minutes as the same tasks on other
    workers; null if that is not known.
    """

    times_slower: float | None
    machine_text: str | None = None
    """Its machine in a few words, with the GPUs of all workers on it."""


class WorkersOut(View, frozen=True, kw_only=True):
    """The workers whose report has not lapsed, fastest first, and those that were lost in the last hour."""

    items: list[WorkerOut]
    lost: list[LostOut]
    text: str
    """How many, how busy, and who is slow, in a sentence or two."""


class RunOut(View, frozen=True, kw_only=True):
    """One run of a schedule. `state` is null once its job is gone."""

    tick: InstantText
    job: str
    state: JobState | None


class ScheduleOut(ScheduleView, frozen=True, kw_only=True):
    next: list[InstantText]
    """The next three ticks; none if it is paused or undeclared."""
    runs: list[RunOut]
    """The last 20 runs, the newest first."""


class SchedulesOut(View, frozen=True, kw_only=True):
    items: list[ScheduleOut]


class PreviewOut(View, frozen=True, kw_only=True):
    """When a rule fires, and what the changes of the clock do to it."""

    next: list[InstantText]
    changes: list[str]


class TypeOut(View, frozen=True, kw_only=True):
    type: str
    usual_s: float | None
    samples: int


class WorkerTotalsOut(View, frozen=True, kw_only=True):
    count: int
    slots: int
    busy: int


class StoreOut(View, frozen=True, kw_only=True):
    driver: str
    durability: str
    at: InstantText


class StoreDetailsOut(StoreView, frozen=True, kw_only=True):
    """The store. Where it is, and details, are for operators of all queues."""

    answers_in_s: float
    capabilities: dict[str, bool]


class StatsOut(View, frozen=True, kw_only=True):
    """Numbers over all queues that the caller may see."""

    version: str
    counts: Counts
    queues: int
    workers: WorkerTotalsOut
    types: list[TypeOut]
    store: StoreOut
    age_s: float


class ServerOut(View, frozen=True, kw_only=True):
    version: str
    driver: str
    name: str


class SessionOut(View, frozen=True, kw_only=True):
    """The caller. `may` says which buttons a page should draw; every operation checks the role itself."""

    name: str
    note: str
    role: Role | None
    queues: list[str] | None
    may: list[str]
    read_only: bool
    way: Literal["token", "host", "loopback"]
    expires_at: InstantText | None
    server: ServerOut


class FollowOut(View, frozen=True, kw_only=True):
    """The followed jobs as they are now."""

    jobs: list[dict[str, Any]]


class TokenOut(View, frozen=True, kw_only=True):
    id: str
    role: Role
    queues: list[str] | None
    created_at: InstantText
    expires_at: InstantText | None
    note: str


class NewTokenOut(TokenOut, frozen=True, kw_only=True):
    """A new token. `token` is its text, which is not kept and cannot be shown again."""

    token: str


class TokensOut(View, frozen=True, kw_only=True):
    items: list[TokenOut]
    file: str | None
    """Where they are kept; null if this server has no token file."""
    roles: dict[str, str]
    """What each role may do, in a few words."""


class JobOut(JobDetails, frozen=True, kw_only=True):
    """A job, and what this server knows beside its record."""

    release: str | None
    """Of the worker that runs it or ran it last, as long as that worker is known."""
    release_since: InstantText | None
    """When that release was first at work."""
    kept_until: InstantText | None
    """When it may be deleted; null while it is not over, or if it is kept for ever."""
    trace_url: str | None
    """Its trace, where `--trace-url` says."""


class CauseJob(ListedJob, frozen=True, kw_only=True):
    """A job of a cause."""

    message: str
    """The last error without its class; words that differ from job to job are between backticks."""


class FailureOut(View, frozen=True, kw_only=True):
    """A cause of failures within a window."""

    cause: str
    type: str
    title: str
    frame: str | None
    failure_kind: str
    place: str
    """Where it failed, or how."""
    queues: list[str]
    attempts: int
    """Attempts that failed for it, retried or not."""
    dead: int
    """Its jobs that are dead now."""
    first_at: InstantText
    """When it was first seen, within the last seven days or the window."""
    last_at: InstantText
    release: str
    """Of the worker that saw it last."""
    is_new: bool
    """First seen within the last 24 hours."""
    began_with: str
    """The release of the worker that saw it first; empty if it was seen before the window."""
    status: Literal["open", "muted", "snoozed"]
    per_step: list[int]
    sample: str
    """A job that failed for it."""
    began: str
    """Since when it fails, and whether it did before."""


class FailuresOut(View, frozen=True, kw_only=True):
    items: list[FailureOut]
    step_s: float | None
    is_kept: bool
    """False if this store keeps no logbook."""
    text: str
    """How much failed, for how many causes, and whether any is new."""


class CauseOut(FailureOut, frozen=True, kw_only=True):
    """A cause with its newest jobs."""

    jobs: list[CauseJob]
    outlook: str
    """What becomes of its jobs."""
    common: list[InCommon]
    """What its newest 100 jobs have in common that 100 other jobs of the type do not have."""
    looked_at: int
    """Its jobs that were compared."""
    dead_now: CountOut
    """Dead letters of this cause; at least so many, if it is not exact."""


class AuditItem(View, frozen=True, kw_only=True):
    """One change by a person. `undo`: `open` if the setting can be changed back, `done` if it was."""

    at: InstantText
    who: str
    """The note of the token, else the name of the caller."""
    name: str
    role: str | None
    client: str | None
    did: str
    text: str
    """The same in words, to read before `what`."""
    what: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    status: int
    request_id: str
    undo: Literal["open", "done"] | None
    undoes: str | None
    """The request whose change this one takes back."""
    details: dict[str, Any]


class AuditOut(View, frozen=True, kw_only=True):
    items: list[AuditItem]
    next_cursor: str | None
    """For `before`."""
    is_kept: bool
    """False if this store keeps no logbook."""


class MarkOut(View, frozen=True, kw_only=True):
    """Something that may explain a change in a chart."""

    at: InstantText
    kind: Literal["release", "setting"]
    text: str
    by: str | None


class SeriesOut(View, frozen=True, kw_only=True):
    """One value per step, null where nothing was measured. Percentiles are up to 40 % off.

    `is_kept` is false for a store without a logbook: then there are no series.
    """

    since: InstantText = field(name="from")
    until: InstantText = field(name="to")
    step_s: float
    series: list[Series]
    marks: list[MarkOut]
    is_kept: bool


class ProbeOut(View, frozen=True, kw_only=True):
    status: Literal["ok"]
