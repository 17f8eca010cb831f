"""Input types: bodies and query strings are parsed into them, and the OpenAPI document shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taskharbor.drivers.messages import MAX_PAGE
from taskharbor.drivers.wire import Role
from taskharbor.model.checks import ID_PATTERN, MAX_COUNT, MAX_HORIZON, MAX_PRIORITY, NAME_PATTERN
from taskharbor.model.schedule import Misfire
from taskharbor.model.search import MAX_SEARCH
from taskharbor.views import InstantText

MAX_JOBS = 1000
"""Jobs in one batch."""
MAX_FOLLOWED = 100
"""Jobs that one event stream follows."""

_NAME = f"^{NAME_PATTERN}$"
_NAME_IN_WORDS = "Letters, digits, dot, underscore, hyphen."
_ID = f"^{ID_PATTERN}$"
_LONGEST = MAX_HORIZON.total_seconds()

Name = Annotated[str, Meta(pattern=_NAME, description=_NAME_IN_WORDS)]
# The same for new jobs, without validation: the driver checks their names, and only the first of each kind in
# a batch. Checking here as well would double the cost of parsing.
JobName = Annotated[str, Meta(description=_NAME_IN_WORDS, extra_json_schema={"pattern": _NAME})]
JobId = Annotated[str, Meta(pattern=_ID, description="A lower-case UUID.")]
Key = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
Seconds = Annotated[float, Meta(ge=0, le=_LONGEST)]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Instant = Annotated[datetime, Meta(tz=True)]
Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Cursor = Annotated[str, Meta(min_length=1, max_length=500)]
Text = Annotated[str, Meta(min_length=1, max_length=500)]
SearchText = Annotated[
    str, Meta(max_length=MAX_SEARCH, description="A search, e.g. state:failed type:send_* args.user.id:42.")
]


class In(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Input: unknown fields are refused, because they would have no effect."""


# ------------------------------------------------------------------ jobs


class UpdateIn(In, frozen=True, kw_only=True):
    """What to change on the waiting job with the same key."""

    data: bool = True
    run_at: bool | Literal["if_later", "if_earlier"] = True
    retry: bool = True
    reset_counts: bool | None = None


class JobIn(In, frozen=True, kw_only=True):
    """One job to enqueue. Missing fields get the option of the task or the default."""

    type: JobName
    queue: JobName | None = None
    delay_s: Seconds | None = None
    timeout_s: Seconds | None = None
    max_attempts: Count | None = None
    max_stalls: Count | None = None
    min_backoff_s: Seconds | None = None
    max_backoff_s: Seconds | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    requires: JobName | None = None
    update: UpdateIn | None = None
    # The fields below differ from job to job; those above are looked up together; see enqueue.py.
    id: JobId | None = None
    key: Key | None = None
    run_at: Instant | None = None
    idempotency_key: Key | None = None
    headers: dict[str, str] | None = None
    payload: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class CancelWaitingIn(In, frozen=True, kw_only=True):
    """The key whose waiting job is cancelled."""

    key: Key


class BatchIn(In, frozen=True, kw_only=True):
    """Jobs to enqueue in one step: all of them, or none."""

    jobs: Annotated[list[JobIn], Meta(min_length=1, max_length=MAX_JOBS)]


class RetryIn(In, frozen=True, kw_only=True):
    """When a finished job runs again, and what changes; missing fields stay as they are.

    With `queue`, the job must be in that queue.
    """

    queue: JobName | None = None
    run_at: Instant | None = None
    delay_s: Seconds | None = None
    reset_counts: bool = True
    payload: msgspec.Raw | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | UnsetType = UNSET
    timeout_s: Seconds | UnsetType = UNSET
    max_attempts: Count | UnsetType = UNSET
    max_stalls: Count | UnsetType = UNSET


class RetryDeadIn(In, frozen=True, kw_only=True):
    """Which dead letters to retry: these ids, or up to `limit` that match."""

    ids: Annotated[list[JobId], Meta(min_length=1, max_length=MAX_PAGE)] | None = None
    queue: Name | None = None
    type: Name | None = None
    failure_kind: Name | None = None
    limit: Limit = 100
    delay_s: Seconds | None = None
    reset_counts: bool = True


class BulkEditIn(In, frozen=True, kw_only=True):
    """When retried jobs run, and what changes about them; missing fields stay as they are."""

    delay_s: Seconds | None = None
    reset_counts: bool = True
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | UnsetType = UNSET
    timeout_s: Seconds | UnsetType = UNSET
    max_attempts: Count | UnsetType = UNSET
    max_stalls: Count | UnsetType = UNSET


class BulkIn(In, frozen=True, kw_only=True):
    """One change for many jobs: those of a search, these, or those of a workflow."""

    action: Literal["retry", "cancel", "delete"]
    q: SearchText = ""
    ids: Annotated[list[JobId], Meta(min_length=1, max_length=MAX_PAGE)] | None = None
    workflow: JobId | None = None
    from_job: (
        Annotated[JobId, Meta(description="Retry this job of the workflow and all after it.")] | None
    ) = None
    edit: BulkEditIn | None = None
    expect: (
        Annotated[int, Meta(ge=0, le=MAX_COUNT, description="The number that the preview had.")] | None
    ) = None
    as_of: (
        Annotated[
            Instant,
            Meta(
                description="`at` of the preview: jobs that changed later do not match, and stay as they are."
            ),
        ]
        | None
    ) = None
    dry_run: bool = False


# ------------------------------------------------------------------ queues and schedules


class RateIn(In, frozen=True, kw_only=True):
    count: Annotated[int, Meta(ge=1, le=MAX_COUNT)]
    per_s: Annotated[float, Meta(ge=0.000001, le=_LONGEST)]


class RetentionIn(In, frozen=True, kw_only=True):
    """How long finished jobs are kept: null forever, 0 not at all."""

    completed_s: Seconds | None = 3600.0
    failed_s: Seconds | None = 1_209_600.0
    cancelled_s: Seconds | None = 1_209_600.0


class QueueIn(In, frozen=True, kw_only=True):
    """Settings of a queue: missing ones stay, null removes one."""

    paused: bool | UnsetType = UNSET
    max_running: Count | None | UnsetType = UNSET
    enqueue_rate: RateIn | None | UnsetType = UNSET
    execute_rate: RateIn | None | UnsetType = UNSET
    fail_queue: Name | None | UnsetType = UNSET
    retention: RetentionIn | None | UnsetType = UNSET


class ScheduleIn(In, frozen=True, kw_only=True):
    """A rule that makes jobs: `cron` or `every_s`, and the job to make."""

    job: JobIn
    cron: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    every_s: Annotated[float, Meta(ge=1, le=_LONGEST)] | None = None
    timezone: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    misfire: Misfire = "latest"
    paused: bool | UnsetType = UNSET


class SessionIn(In, frozen=True, kw_only=True):
    """The token to sign in with. It is not stored, neither here nor in the cookie."""

    token: Annotated[str, Meta(min_length=1, max_length=200)]


class FollowIn(In, frozen=True, kw_only=True):
    """The jobs to follow from now on, instead of those before."""

    jobs: Annotated[list[JobId], Meta(max_length=MAX_FOLLOWED)]


class PreviewIn(In, frozen=True, kw_only=True):
    """A rule to try: `cron` or `every_s`."""

    cron: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    every_s: Annotated[float, Meta(ge=1, le=_LONGEST)] | None = None
    timezone: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    n: Annotated[int, Meta(ge=1, le=100)] = 10


class SnoozeIn(In, frozen=True, kw_only=True):
    until: Annotated[str, Meta(max_length=64, description="An instant, or `release`: until the next one.")]


class TokenIn(In, frozen=True, kw_only=True):
    """A token to create. Without `queues` it is for all of them."""

    role: Role
    queues: Annotated[list[Name], Meta(min_length=1, max_length=1000)] | None = None
    expires_in_s: Annotated[float, Meta(gt=0, le=_LONGEST)] | None = None
    note: Annotated[str, Meta(max_length=200)] = ""


# ------------------------------------------------------------------ query strings


class TimesQuery(In, frozen=True, kw_only=True):
    """When jobs were enqueued and ended; jobs that have not ended never match an end."""

    # Strings: query strings are parsed leniently, and numbers would become instants. UNSET instead of None,
    # as the text `null` would become None.
    created_after: InstantText | UnsetType = UNSET
    created_before: InstantText | UnsetType = UNSET
    ended_after: InstantText | UnsetType = UNSET
    ended_before: InstantText | UnsetType = UNSET


class JobsQuery(TimesQuery, frozen=True, kw_only=True):
    """Which jobs; all conditions must match."""

    queue: Name | None = None
    state: Annotated[str, Meta(description="One or more states, with commas.")] | None = None
    type: Name | None = None
    key: Key | None = None
    worker_id: Text | None = None
    failure_kind: Name | None = None
    q: SearchText = ""
    args: Annotated[bool, Meta(description="With the arguments in one line, secrets hidden.")] = False
    sort: Annotated[
        Literal["seq", "-seq", "ended", "-ended"],
        Meta(description="By enqueue or by end, - the newest first; by end, only jobs that have ended."),
    ] = "-seq"
    limit: Limit = 50
    cursor: Cursor | None = None


class CountQuery(In, frozen=True, kw_only=True):
    q: SearchText = ""


class DeadQuery(TimesQuery, frozen=True, kw_only=True):
    queue: Name | None = None
    type: Name | None = None
    failure_kind: Name | None = None
    sort: Literal["seq", "-seq"] = "-seq"
    limit: Limit = 50
    cursor: Cursor | None = None


class JobQuery(In, frozen=True, kw_only=True):
    redact: Annotated[bool, Meta(description="Hide values under names like password, as for viewers.")] = (
        False
    )


class ResultQuery(JobQuery, frozen=True, kw_only=True):
    wait_s: Annotated[float, Meta(ge=0, le=60, description="Wait so long for the end of the job.")] = 0


class FailuresQuery(In, frozen=True, kw_only=True):
    window: Literal["15m", "1h", "6h", "24h", "7d", "30d"] = "24h"
    queue: Name | None = None
    release: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class AuditQuery(In, frozen=True, kw_only=True):
    before: Annotated[str, Meta(max_length=64, description="Only changes before this instant.")] = ""
    limit: Limit = 50


class ScaleQuery(In, frozen=True, kw_only=True):
    per_worker: Annotated[
        int, Meta(ge=1, le=10_000, description="How many jobs one worker runs at the same time.")
    ] = 1


class EventsQuery(In, frozen=True, kw_only=True):
    jobs: Annotated[
        str, Meta(max_length=4000, description="Ids of jobs to follow, with commas; at most 100.")
    ] = ""
    queues: Annotated[str, Meta(max_length=4000, description="Only these queues, with commas.")] = ""
    topics: Annotated[
        str,
        Meta(max_length=100, description="Some of board, workers, failures, bulk, queues, with commas."),
    ] = ""


class SeriesQuery(In, frozen=True, kw_only=True):
    window: Literal["15m", "1h", "6h", "24h", "7d", "30d"] = "1h"
    by: Literal["total", "queue", "type"] = "total"
    names: (
        Annotated[str, Meta(max_length=4000, description="Only these queues or types, with commas.")] | None
    ) = None


class NoQuery(In, frozen=True, kw_only=True):
    """No query parameters are allowed."""
