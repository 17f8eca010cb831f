"""Rows ↔ records. A record is put together from the parts that exist: see sql/migrations/0001_schema.sql."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from taskharbor.model.clock import EPOCH, micros, span_micros
from taskharbor.model.clock import instant as instant_of
from taskharbor.model.job import AttemptRecord, Avoid, JobRecord, NewJob, Progress, Update
from taskharbor.model.state import JobState


class Flags:
    """What a step must know about a job before it reads it whole. 0: nothing."""

    PAST = 1  # it has a row in job_history
    KEYED = 2
    IDEMPOTENT = 4
    COPY = 8  # it is one
    CANCEL = 16  # was requested
    COPIED = 32  # this run has a copy, or had one
    TIMED = 64  # in waiting: `at` is a run_at
    BOUND = 128  # it has bonds, a family or notes
    CHILD = 256  # instead of BOUND: a parent is all that it has


WAITING, BLOCKED, RUNNING, COMPLETED, FAILED, CANCELLED = 0, 2, 3, 4, 5, 6
CODES = {
    JobState.READY: WAITING,
    JobState.SCHEDULED: WAITING,
    JobState.BLOCKED: BLOCKED,
    JobState.RUNNING: RUNNING,
    JobState.COMPLETED: COMPLETED,
    JobState.FAILED: FAILED,
    JobState.CANCELLED: CANCELLED,
}
STATES = {code: state for state, code in CODES.items() if code != WAITING}


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of a job that are not at their default. Spans are microseconds."""

    headers: dict[str, str] | None = None
    timeout: int = 0
    max_attempts: int = 0
    max_stalls: int = 0
    min_backoff: int | None = None
    max_backoff: int | None = None
    avoid: Avoid | None = None


_json = msgspec.json.Encoder()
_options_decoder = msgspec.json.Decoder(Options)
_progress_decoder = msgspec.json.Decoder(Progress)
_history_decoder = msgspec.json.Decoder(tuple[AttemptRecord, ...])
_update_decoder = msgspec.json.Decoder(Update)
_NO_OPTIONS = Options()

# ------------------------------------------------------------------ options

Shape = tuple[timedelta, int, int, timedelta | None, timedelta | None]
# The options of one task's jobs are the same millions of times.
_texts: dict[Shape, str | None] = {}


def options_of_new(job: NewJob) -> str | None:
    """The options of a new job; None when all are at their default."""
    if job.headers:
        return _options_text(job)
    shape = (job.timeout, job.max_attempts, job.max_stalls, job.min_backoff, job.max_backoff)
    try:
        return _texts[shape]
    except KeyError:
        if len(_texts) > 1000:
            _texts.clear()
        text = _texts[shape] = _options_text(job)
        return text


def options_of(job: JobRecord) -> str | None:
    return _options_text(job, job.avoid)


def _options_text(job: NewJob | JobRecord, avoid: Avoid | None = None) -> str | None:
    options = Options(
        headers=job.headers or None,
        timeout=span_micros(job.timeout),
        max_attempts=job.max_attempts,
        max_stalls=job.max_stalls,
        min_backoff=_span(job.min_backoff),
        max_backoff=_span(job.max_backoff),
        avoid=avoid,
    )
    return None if options == _NO_OPTIONS else json_text(options)


def with_options(record: JobRecord, text: str | None) -> JobRecord:
    """The record with the options that its body keeps as text."""
    if not text:
        return record
    known = _model_of(text)
    return replace(
        record,
        headers=known.headers.copy(),
        timeout=known.timeout,
        max_attempts=known.max_attempts,
        max_stalls=known.max_stalls,
        min_backoff=known.min_backoff,
        max_backoff=known.max_backoff,
        avoid=known.avoid,
    )


@lru_cache(maxsize=1000)
def _model_of(text: str | None) -> JobRecord:
    """A record of which only the options count: those of one task's jobs are the same millions of times."""
    options = _options_decoder.decode(text) if text else _NO_OPTIONS
    return JobRecord(
        id="",
        seq=0,
        type="",
        queue="",
        state=JobState.READY,
        payload=b"",
        created_at=EPOCH,
        updated_at=EPOCH,
        headers=options.headers or {},
        timeout=timedelta(microseconds=options.timeout),
        max_attempts=options.max_attempts,
        max_stalls=options.max_stalls,
        min_backoff=_timedelta(options.min_backoff),
        max_backoff=_timedelta(options.max_backoff),
        avoid=options.avoid,
    )


# ------------------------------------------------------------------ records


Row = namedtuple(
    "Row",
    (
        "seq id queue type lane priority created_at run_at key idempotency_key options copy_of payload "
        "state flags version fence since result progress "  # job_state and job_result
        "claim token worker started_at expires_at updated_at extensions "  # while it runs
        "success_started_at success_token "  # of a first-try success
        "attempts stalls starts last_run_at last_started_at settled_token "  # job_history, if there is one
        "last_error failed_at failure_kind history update_rule"
    ),
)
"""A row of the statement `get`: the body, then each part of the job that exists."""


class ClaimRow(NamedTuple):
    """A row of the statement `settle_claim`."""

    no: int
    queue: str
    token: str
    worker: str
    started_at: int
    expires_at: int
    extensions: int
    held: int


def record_of(row: Row) -> JobRecord:
    """The record behind a row, with its token. A job that waits reads ready, whatever its run_at."""
    created = instant(row.created_at)
    model = _model_of(row.options)
    values = {
        "id": row.id,
        "seq": row.seq,
        "type": row.type,
        "queue": row.queue,
        "payload": row.payload,
        "created_at": created,
        "updated_at": created,
        "key": row.key,
        "idempotency_key": row.idempotency_key,
        "headers": model.headers.copy(),
        "priority": row.priority,
        "requires": row.lane,
        "run_at": instant_or_none(row.run_at),
        "speculates_on": row.copy_of,
    }
    if row.attempts is not None:
        _add_history(values, row)
    if row.state == RUNNING:
        _add_run(values, row)
    elif row.state is not None:
        _add_state(values, row)
    return replace(model, **values)


def _add_history(values: dict[str, Any], row: Row) -> None:
    values["attempts"] = row.attempts
    values["stalls"] = row.stalls
    values["starts"] = row.starts
    values["run_at"] = instant_or_none(row.last_run_at)
    values["started_at"] = instant_or_none(row.last_started_at)
    values["settled_token"] = row.settled_token
    values["last_error"] = row.last_error
    values["failed_at"] = instant_or_none(row.failed_at)
    values["failure_kind"] = row.failure_kind
    if row.history is not None:
        values["history"] = _history_decoder.decode(row.history)
    if row.update_rule is not None:
        values["update"] = _update_decoder.decode(row.update_rule)


def past_of(columns: Sequence[Any]) -> dict[str, Any]:
    """What the columns `attempts` to `history` of job_history say of a running job; nothing on its first run.

    Left out is what a claim has cleared or replaced, and `update_rule`, which only a blocked job has.
    """
    attempts, stalls, starts, run_at, last_error, failed_at, failure_kind, history = columns
    if attempts is None:
        return {}
    return {
        "attempts": attempts,
        "stalls": stalls,
        "starts": starts + 1,
        "run_at": instant_or_none(run_at),
        "last_error": last_error,
        "failed_at": instant_or_none(failed_at),
        "failure_kind": failure_kind,
        "history": () if history is None else _history_decoder.decode(history),
    }


def _add_run(values: dict[str, Any], row: Row) -> None:
    started = instant(row.started_at)
    values["state"] = JobState.RUNNING
    values["token"] = row.token
    values["fence"] = row.started_at if row.fence is None else row.fence
    values["lease_expires_at"] = instant(row.expires_at)
    values["worker_id"] = row.worker
    values["settled_token"] = None
    values["cancel_requested"] = bool(row.flags & Flags.CANCEL)
    values["starts"] = values.get("starts", 0) + 1
    values["started_at"] = started
    values["progress"] = _progress(row.progress)
    values["updated_at"] = instant(row.updated_at)
    values["version"] = row.version + row.extensions


def _add_state(values: dict[str, Any], row: Row) -> None:
    if row.state == COMPLETED and row.attempts is None:
        values["starts"] = 1
        values["started_at"] = instant(row.success_started_at)
        values["fence"] = row.success_started_at
        values["settled_token"] = row.success_token
    else:
        values["fence"] = row.fence or 0
        values["cancel_requested"] = bool(row.flags & Flags.CANCEL)
    since = instant(row.since)
    values["state"] = STATES.get(row.state, JobState.READY)
    values["version"] = row.version
    values["updated_at"] = since
    values["finished_at"] = since if row.state > RUNNING else None
    values["result"] = row.result
    values["progress"] = _progress(row.progress)


def history_of(job: JobRecord) -> tuple[Any, ...]:
    """What `put_history` stores of a job that does not run."""
    return (
        job.seq,
        job.attempts,
        job.stalls,
        job.starts,
        micros_or_none(job.run_at),
        micros_or_none(job.started_at),
        job.settled_token,
        job.last_error,
        micros_or_none(job.failed_at),
        job.failure_kind,
        json_text(job.history) if job.history else None,
        None if job.update is None else json_text(job.update),
    )


def ties_of(job: JobRecord) -> int:
    """BOUND or CHILD of a job that belongs to others or has notes; 0 for a plain one."""
    bonds = job.bonds
    if bonds is None:
        return Flags.BOUND if job.family is not None or job.notes else 0
    is_leaf = bonds.parent is not None and bonds.deadline is None and job.family is None and not job.notes
    return Flags.CHILD if is_leaf else Flags.BOUND


def flags_of(job: JobRecord, *, has_past: bool) -> int:
    return (
        ties_of(job)
        | (Flags.PAST if has_past else 0)
        | (Flags.KEYED if job.key is not None else 0)
        | (Flags.IDEMPOTENT if job.idempotency_key is not None else 0)
        | (Flags.COPY if job.speculates_on is not None else 0)
        | (Flags.CANCEL if job.cancel_requested else 0)
    )


def _progress(text: str | None) -> Progress | None:
    return None if text is None else _progress_decoder.decode(text)


def progress_text(progress: Progress | None) -> str | None:
    return None if progress is None else json_text(progress)


# ------------------------------------------------------------------ values


def json_text(value: Any) -> str:
    return _json.encode(value).decode()


def json_array(values: Iterable[Any]) -> str:
    """An array for json_each."""
    return _json.encode(values if isinstance(values, list | tuple) else list(values)).decode()


def micros_or_none(at: datetime | None) -> int | None:
    return None if at is None else micros(at)


instant = lru_cache(maxsize=4096)(instant_of)
"""Jobs of one call, of one claim and of one end share their instants."""


def instant_or_none(us: int | None) -> datetime | None:
    return None if us is None else instant(us)


def _span(span: timedelta | None) -> int | None:
    return None if span is None else span_micros(span)


def _timedelta(us: int | None) -> timedelta | None:
    return None if us is None else timedelta(microseconds=us)
