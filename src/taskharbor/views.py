"""Views: records as the command line prints them and the HTTP API sends them.

snake_case names, instants as RFC 3339 in UTC, durations in seconds with the suffix `_s`, states in
lower case. Keys and payloads are bytes in a store; here they are text and values where possible. The OpenAPI
document is made from these types.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from taskharbor.client.why import Reason, Why
from taskharbor.drivers.messages import Counts, DriverInfo, QueueInfo
from taskharbor.model.cause import cause_of_job
from taskharbor.model.codec import CODEC_HEADER, MAX_DEPTH
from taskharbor.model.family_steps import bonds_of, family_of
from taskharbor.model.job import NO_TIME, JobRecord, Progress
from taskharbor.model.limits import RateLimit
from taskharbor.model.presence import GpuUse, Machine, WorkerInfo
from taskharbor.model.queue import QueueRules, Retention
from taskharbor.model.schedule import Misfire, StoredSchedule, is_undeclared
from taskharbor.model.secrets import redacted
from taskharbor.model.state import JobState

V = TypeVar("V", bound=msgspec.Struct)

InstantText = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What goes out. Readers ignore fields that they do not know."""


# ------------------------------------------------------------------ jobs


class ProgressView(View, frozen=True, kw_only=True):
    fraction: float
    text: str


class AttemptView(View, frozen=True, kw_only=True):
    fence: int
    worker_id: str
    started_at: InstantText
    ended_at: InstantText
    outcome: str
    error: str | None
    error_class: str | None


class JobView(View, frozen=True, kw_only=True):
    """A job in a list."""

    id: str
    type: str
    queue: str
    state: JobState
    key: str | None
    priority: int
    requires: str
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
    progress: ProgressView | None
    version: int


class ListedJob(JobView, frozen=True, kw_only=True):
    """A job in a list of the HTTP API.

    `worker_id` runs it or ran it last. No store keeps who completed a job at the first attempt.
    """

    cause: str | None
    """The cause of its last failure: failures that are alike have the same one."""
    args: str | None | UnsetType = UNSET
    """The arguments in one short line, if they were asked for."""


class JobDetails(JobView, frozen=True, kw_only=True):
    """A job with everything that is known about it.

    A payload or result that is not JSON comes as base64 under `payload_base64` or `result_base64`.
    """

    seq: int
    fence: int
    idempotency_key: str | None
    headers: dict[str, str]
    timeout_s: float | None
    min_backoff_s: float | None
    max_backoff_s: float | None
    speculates_on: str | None
    parent: str | None
    """The job that it is a child of."""
    children: int
    open_children: int
    """Those that are not over."""
    history: list[AttemptView]
    payload: Any = UNSET
    payload_base64: str | UnsetType = UNSET
    result: Any = UNSET
    result_base64: str | UnsetType = UNSET


class WhyView(View, frozen=True, kw_only=True):
    """Why a job is where it is: a reason to program against, and a sentence."""

    id: str
    type: str
    queue: str
    state: JobState
    reason: Reason
    text: str
    until: InstantText | None
    facts: list[str]
    hint: str | None


def job_view(job: JobRecord) -> JobView:
    return JobView(**_job_fields(job))


def listed_job(job: JobRecord, args: str | None | UnsetType = UNSET) -> ListedJob:
    cause, fields = cause_of_job(job), _job_fields(job)
    if job.worker_id is None and job.history:
        fields["worker_id"] = job.history[-1].worker_id or None
    return ListedJob(**fields, cause=None if cause is None else cause.id, args=args)


def job_details(job: JobRecord, *, reveal: bool = False) -> JobDetails:
    """Everything about a job. Values under names like `password` or `token` are hidden unless `reveal`."""
    codec = job.headers.get(CODEC_HEADER, "json")
    return JobDetails(
        **_job_fields(job),
        seq=job.seq,
        fence=job.fence,
        idempotency_key=_shown(job.idempotency_key),
        headers=job.headers if reveal else redacted(job.headers),
        timeout_s=None if job.timeout == NO_TIME else seconds(job.timeout),
        min_backoff_s=seconds(job.min_backoff),
        max_backoff_s=seconds(job.max_backoff),
        speculates_on=job.speculates_on,
        parent=bonds_of(job).parent,
        children=family_of(job).total,
        open_children=family_of(job).open,
        history=[_of(AttemptView, attempt) for attempt in job.history],
        **_decoded("payload", job.payload, codec, reveal),
        **_decoded("result", job.result, codec, reveal),
    )


def payload_value(job: JobRecord, *, reveal: bool = False) -> Any:
    """The decoded payload; None if it cannot be decoded here. Secrets are hidden unless `reveal`."""
    codec = job.headers.get(CODEC_HEADER, "json")
    return _decoded("payload", job.payload, codec, reveal).get("payload")


def arguments_text(job: JobRecord, limit: int = 120) -> str | None:
    """The arguments in one short line, like `user_id=7, template="welcome"`; secrets are hidden."""
    value = payload_value(job)
    if value is None:
        return None
    if isinstance(value, dict):
        text = ", ".join(f"{name}={_as_json(item)}" for name, item in value.items())
    else:
        text = ", ".join(map(_as_json, value)) if isinstance(value, list) else _as_json(value)
    plain = "".join(sign if sign.isprintable() else "\ufffd" for sign in text[: limit + 1])
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def _as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def why_view(why: Why) -> WhyView:
    return _of(WhyView, why)


def _job_fields(job: JobRecord) -> dict[str, Any]:
    fields = {name: _shown(getattr(job, name)) for name in JobView.__struct_fields__}
    fields["max_attempts"] = job.max_attempts or None
    fields["max_stalls"] = job.max_stalls or None
    return fields


# ------------------------------------------------------------------ queues, workers, schedules, store


class RateView(View, frozen=True, kw_only=True):
    count: int
    per_s: float


class RetentionView(View, frozen=True, kw_only=True):
    completed_s: float | None
    failed_s: float | None
    cancelled_s: float | None


class RulesView(View, frozen=True, kw_only=True):
    paused: bool
    max_running: int | None
    enqueue_rate: RateView | None
    execute_rate: RateView | None
    fail_queue: str | None
    retention: RetentionView | None


class QueueView(View, frozen=True, kw_only=True):
    """A queue: its counts, its rules, and for how long its oldest ready job has been waiting."""

    name: str
    scheduled: int
    ready: int
    blocked: int
    running: int
    completed: int
    failed: int
    cancelled: int
    oldest_s: float | None
    paused: bool
    max_running: int | None
    enqueue_rate: RateView | None
    execute_rate: RateView | None
    fail_queue: str | None
    retention: RetentionView | None


class WorkerView(View, frozen=True, kw_only=True):
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
    release: str
    machine: Machine | None
    gpus: list[GpuUse]
    is_quiet: bool
    latency_s: float | None
    samples: int
    started_at: InstantText | None
    seen_at: InstantText
    expires_at: InstantText


class ScheduleView(View, frozen=True, kw_only=True):
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


class StoreView(View, frozen=True, kw_only=True):
    driver: str
    store: str
    location: str
    durability: str
    schema: str
    at: InstantText
    details: dict[str, str]


def queue_view(queue: QueueInfo, now: datetime) -> QueueView:
    oldest = queue.oldest_ready_at
    return QueueView(
        name=queue.queue,
        **{state: getattr(queue.counts, state) for state in Counts.__struct_fields__},
        oldest_s=None if oldest is None else max((now - oldest).total_seconds(), 0.0),
        **_rules_fields(queue.rules),
    )


def rules_view(rules: QueueRules) -> RulesView:
    return RulesView(**_rules_fields(rules))


def _rules_fields(rules: QueueRules) -> dict[str, Any]:
    return {name: _shown(getattr(rules, name)) for name in RulesView.__struct_fields__}


def worker_view(worker: WorkerInfo) -> WorkerView:
    return _of(
        WorkerView,
        worker.report,
        id=worker.report.worker_id,
        latency_s=seconds(worker.latency),
        samples=worker.samples,
        seen_at=instant_text(worker.seen_at),
        expires_at=instant_text(worker.expires_at),
    )


def schedule_view(entry: StoredSchedule, next_at: datetime | None, *, now: datetime) -> ScheduleView:
    schedule = entry.schedule
    return _of(
        ScheduleView,
        entry,
        name=schedule.name,
        cron=schedule.cron,
        every_s=seconds(schedule.every),
        timezone=schedule.timezone,
        misfire=schedule.misfire,
        type=schedule.template.type,
        queue=schedule.template.queue,
        is_undeclared=is_undeclared(entry, now),
        next_tick_at=instant_text(next_at),
    )


def store_view(info: DriverInfo) -> StoreView:
    return _of(StoreView, info)


# ------------------------------------------------------------------ values


def plain(view: msgspec.Struct | Mapping[str, Any]) -> dict[str, Any]:
    """A view as a dict of JSON types."""
    return dict(view) if isinstance(view, Mapping) else msgspec.to_builtins(view)


def instant_text(at: datetime | None) -> str | None:
    """RFC 3339, always with microseconds: texts of equal length sort by time."""
    return None if at is None else at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


def _of(kind: type[V], record: Any, **given: Any) -> V:
    """A view with the fields of a record that have the same name, and those that are given."""
    same = (name for name in kind.__struct_fields__ if name not in given)
    return kind(**{name: _shown(getattr(record, name)) for name in same}, **given)


def _shown(value: Any) -> Any:
    match value:
        case datetime():
            return instant_text(value)
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case tuple():
            return list(value)
        case Progress():
            return ProgressView(fraction=value.fraction, text=value.text)
        case RateLimit():
            return RateView(count=value.count, per_s=value.per.total_seconds())
        case Retention():
            spans = {f"{name}_s": seconds(getattr(value, name)) for name in Retention.__struct_fields__}
            return RetentionView(**spans)
    return value


def _decoded(name: str, data: bytes | None, codec: str, reveal: bool) -> dict[str, Any]:
    """`name` with the decoded value, or `name_base64` if it cannot be decoded here."""
    if not data:
        return {name: None}
    try:
        value = _DECODERS[codec](data)
        _refuse_unshowable(value)
    except (KeyError, TypeError, msgspec.MsgspecError, RecursionError, ValueError, OverflowError):
        return {f"{name}_base64": base64.b64encode(data).decode()}
    return {name: value if reveal else redacted(value)}


def _refuse_unshowable(value: Any) -> None:
    """Raises one of the errors above for a value that cannot be written as JSON.

    Other programs may put anything into a payload: endless nesting, numbers of a thousand digits.
    """
    if _is_deeper(value, MAX_DEPTH):
        raise ValueError("nested too deep to be shown")
    msgspec.json.encode(value)


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in inner if isinstance(item, dict | list))


def _from_msgpack(data: bytes) -> Any:
    """Through JSON's own types, so that bytes and timestamps inside can be printed."""
    return msgspec.to_builtins(msgspec.msgpack.decode(data), str_keys=True)


def _from_json(data: bytes) -> Any:
    return msgspec.json.decode(data)


_DECODERS: dict[str, Callable[[bytes], Any]] = {"json": _from_json, "msgpack": _from_msgpack}
