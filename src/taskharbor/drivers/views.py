"""Records as plain JSON data: what the command line prints and the HTTP API sends.

snake_case names, instants as RFC 3339 in UTC, durations in seconds with the suffix `_s`, states in
lower case. Keys and payloads are bytes in a store; here they are text and values where they can be.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec

from taskharbor.drivers.messages import DriverInfo, QueueInfo
from taskharbor.model.codec import CODEC_HEADER, MAX_DEPTH
from taskharbor.model.job import NO_TIME, AttemptRecord, JobRecord, Progress
from taskharbor.model.limits import RateLimit
from taskharbor.model.presence import WorkerInfo
from taskharbor.model.queue import QueueRules, Retention
from taskharbor.model.schedule import StoredSchedule, is_undeclared
from taskharbor.model.secrets import redacted

View = dict[str, Any]


def job_view(job: JobRecord, *, is_full: bool = False, reveal: bool = False) -> View:
    """One job. The short form leaves out payload, result, headers and history.

    Values under names like `password` or `token` are hidden unless `reveal` is given.
    """
    view: View = {
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
        "state": job.state.value,
        "key": _text(job.key),
        "priority": job.priority,
        "requires": job.requires,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts or None,
        "stalls": job.stalls,
        "max_stalls": job.max_stalls or None,
        "starts": job.starts,
        "run_at": instant_text(job.run_at),
        "created_at": instant_text(job.created_at),
        "started_at": instant_text(job.started_at),
        "finished_at": instant_text(job.finished_at),
        "updated_at": instant_text(job.updated_at),
        "failed_at": instant_text(job.failed_at),
        "last_error": job.last_error,
        "failure_kind": job.failure_kind,
        "worker_id": job.worker_id,
        "lease_expires_at": instant_text(job.lease_expires_at),
        "cancel_requested": job.cancel_requested,
        "progress": _progress_view(job.progress),
        "version": job.version,
    }
    return view | _details(job, reveal) if is_full else view


def _details(job: JobRecord, reveal: bool) -> View:
    codec = job.headers.get(CODEC_HEADER, "json")
    return {
        "seq": job.seq,
        "fence": job.fence,
        "idempotency_key": _text(job.idempotency_key),
        "headers": job.headers if reveal else redacted(job.headers),
        "timeout_s": None if job.timeout == NO_TIME else seconds(job.timeout),
        "min_backoff_s": seconds(job.min_backoff),
        "max_backoff_s": seconds(job.max_backoff),
        "speculates_on": job.speculates_on,
        "history": [_attempt_view(attempt) for attempt in job.history],
        **_value_view("payload", job.payload, codec, reveal),
        **_value_view("result", job.result, codec, reveal),
    }


def queue_view(queue: QueueInfo, now: datetime) -> View:
    """One queue: numbers, rules, and for how long its oldest ready job has been waiting."""
    oldest = queue.oldest_ready_at
    return {
        "name": queue.queue,
        "scheduled": queue.counts.scheduled,
        "ready": queue.counts.ready,
        "blocked": queue.counts.blocked,
        "running": queue.counts.running,
        "completed": queue.counts.completed,
        "failed": queue.counts.failed,
        "cancelled": queue.counts.cancelled,
        "oldest_s": None if oldest is None else max(seconds(now - oldest) or 0.0, 0.0),
        **rules_view(queue.rules),
    }


def rules_view(rules: QueueRules) -> View:
    return {
        "paused": rules.paused,
        "max_running": rules.max_running,
        "enqueue_rate": rate_view(rules.enqueue_rate),
        "execute_rate": rate_view(rules.execute_rate),
        "fail_queue": rules.fail_queue,
        "retention": _retention_view(rules.retention),
    }


def rate_view(rate: RateLimit | None) -> View | None:
    return None if rate is None else {"count": rate.count, "per_s": seconds(rate.per)}


def worker_view(worker: WorkerInfo) -> View:
    report = worker.report
    return {
        "id": report.worker_id,
        "name": report.name,
        "kind": report.kind,
        "queues": list(report.queues),
        "lanes": list(report.lanes),
        "types": list(report.types),
        "concurrency": report.concurrency,
        "running": list(report.running),
        "host": report.host,
        "pid": report.pid,
        "labels": dict(report.labels),
        "is_quiet": report.is_quiet,
        "latency_s": seconds(worker.latency),
        "samples": worker.samples,
        "started_at": instant_text(report.started_at),
        "seen_at": instant_text(worker.seen_at),
        "expires_at": instant_text(worker.expires_at),
    }


def schedule_view(entry: StoredSchedule, next_at: datetime | None, *, now: datetime) -> View:
    schedule = entry.schedule
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "every_s": seconds(schedule.every),
        "timezone": schedule.timezone,
        "misfire": schedule.misfire,
        "paused": entry.paused,
        "type": schedule.template.type,
        "queue": schedule.template.queue,
        "last_tick_at": instant_text(entry.last_tick_at),
        "fired_at": instant_text(entry.fired_at),
        "declared_at": instant_text(entry.declared_at),
        "is_undeclared": is_undeclared(entry, now),
        "next_tick_at": instant_text(next_at),
    }


def store_view(info: DriverInfo) -> View:
    return {
        "driver": info.driver,
        "store": info.store,
        "location": info.location,
        "durability": info.durability,
        "schema": info.schema,
        "at": instant_text(info.at),
        "details": dict(info.details),
    }


def instant_text(at: datetime | None) -> str | None:
    """RFC 3339 with microseconds, always: texts of equal length sort by time."""
    return None if at is None else at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


def _value_view(name: str, data: bytes | None, codec: str, reveal: bool) -> View:
    """`name` with the decoded value, or `name_base64` when this codec cannot be read here."""
    if not data:
        return {name: None}
    try:
        value = _DECODERS[codec](data)
        _refuse_unshowable(value)
    except (KeyError, TypeError, msgspec.MsgspecError, RecursionError, ValueError, OverflowError):
        return {f"{name}_base64": base64.b64encode(data).decode()}
    return {name: value if reveal else redacted(value)}


def _refuse_unshowable(value: Any) -> None:
    """Raises what _value_view expects for a value that JSON does not have: whoever gets the view writes JSON.

    Other programs may put anything into a payload: nesting without end, numbers of a thousand digits.
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


def _attempt_view(attempt: AttemptRecord) -> View:
    return {
        "fence": attempt.fence,
        "worker_id": attempt.worker_id,
        "started_at": instant_text(attempt.started_at),
        "ended_at": instant_text(attempt.ended_at),
        "outcome": attempt.outcome,
        "error": attempt.error,
    }


def _progress_view(progress: Progress | None) -> View | None:
    return None if progress is None else {"fraction": progress.fraction, "text": progress.text}


def _retention_view(retention: Retention | None) -> View | None:
    if retention is None:
        return None
    return {
        "completed_s": seconds(retention.completed),
        "failed_s": seconds(retention.failed),
        "cancelled_s": seconds(retention.cancelled),
    }


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode("utf-8", "backslashreplace")
