"""Rows ↔ records. A record is put together from the parts that exist: see 0001_jobs.sql."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from taskharbor.model.clock import instant, micros, span_micros
from taskharbor.model.job import AttemptRecord, Avoid, JobRecord, NewJob, Progress, Update
from taskharbor.model.state import JobState


class Flags:
    """Why the end of a job needs a closer look. 0: it does not."""

    PAST = 1  # it was more than enqueued before
    KEYED = 2
    IDEMPOTENT = 4
    COPY = 8  # it is one
    CANCEL = 16  # was requested
    COPIED = 32  # this run has one, or had it
    PROGRESS = 64


class Traits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of a job that are not at their default. Spans are microseconds."""

    key: bytes | None = None
    idempotency_key: bytes | None = None
    headers: dict[str, str] | None = None
    timeout: int = 0
    max_attempts: int = 0
    max_stalls: int = 0
    min_backoff: int | None = None
    max_backoff: int | None = None
    avoid: Avoid | None = None


class Past(msgspec.Struct, frozen=True, omit_defaults=True, array_like=False):
    """What a job has behind it, complete as of its last step that was not a plain claim."""

    version: int
    updated_at: datetime
    run_at: datetime | None = None
    attempts: int = 0
    stalls: int = 0
    starts: int = 0
    fence: int = 0
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
    update: Update | None = None


_PAST_FIELDS = Past.__struct_fields__
_traits_encoder = msgspec.json.Encoder()
_traits_decoder = msgspec.json.Decoder(Traits)
_past_encoder = msgspec.msgpack.Encoder()
_past_decoder = msgspec.msgpack.Decoder(Past)
_progress_decoder = msgspec.json.Decoder(Progress)
_NO_TRAITS = Traits()

# ------------------------------------------------------------------ options

Options = tuple[timedelta, int, int, timedelta | None, timedelta | None]
# The options of one task's jobs are the same millions of times.
_texts: dict[Options, str | None] = {}


def traits_of_new(job: NewJob) -> str | None:
    """The traits of a job without key, idempotency key and headers; None when all are at their default."""
    options = (job.timeout, job.max_attempts, job.max_stalls, job.min_backoff, job.max_backoff)
    try:
        return _texts[options]
    except KeyError:
        if len(_texts) > 1000:
            _texts.clear()
        text = _texts[options] = _traits_text(
            Traits(
                timeout=span_micros(job.timeout),
                max_attempts=job.max_attempts,
                max_stalls=job.max_stalls,
                min_backoff=_span(job.min_backoff),
                max_backoff=_span(job.max_backoff),
            )
        )
        return text


def traits_with_headers(job: NewJob) -> str | None:
    """The same for a job with headers."""
    return _traits_text(
        Traits(
            headers=job.headers or None,
            timeout=span_micros(job.timeout),
            max_attempts=job.max_attempts,
            max_stalls=job.max_stalls,
            min_backoff=_span(job.min_backoff),
            max_backoff=_span(job.max_backoff),
        )
    )


def traits_of(job: JobRecord) -> str | None:
    return _traits_text(
        Traits(
            key=job.key,
            idempotency_key=job.idempotency_key,
            headers=job.headers or None,
            timeout=span_micros(job.timeout),
            max_attempts=job.max_attempts,
            max_stalls=job.max_stalls,
            min_backoff=_span(job.min_backoff),
            max_backoff=_span(job.max_backoff),
            avoid=job.avoid,
        )
    )


def with_traits(record: JobRecord, text: str | None) -> JobRecord:
    """The record with the options that a body keeps as text."""
    if text is None:
        return record
    traits = _traits_decoder.decode(text)
    return replace(
        record,
        key=traits.key,
        idempotency_key=traits.idempotency_key,
        headers=traits.headers or {},
        timeout=timedelta(microseconds=traits.timeout),
        max_attempts=traits.max_attempts,
        max_stalls=traits.max_stalls,
        min_backoff=_timedelta(traits.min_backoff),
        max_backoff=_timedelta(traits.max_backoff),
        avoid=traits.avoid,
    )


def _traits_text(traits: Traits) -> str | None:
    return None if traits == _NO_TRAITS else _traits_encoder.encode(traits).decode()


# ------------------------------------------------------------------ the past


def past_of(job: JobRecord) -> bytes:
    return _past_encoder.encode(Past(*[getattr(job, name) for name in _PAST_FIELDS]))


def progress_text(progress: Progress) -> str:
    return _traits_encoder.encode(progress).decode()


# ------------------------------------------------------------------ whole records


def record_of(row: tuple[Any, ...]) -> JobRecord:
    """The record behind a row of get.sql, with its token; a waiting one reads by the last step's clock."""
    return _over(_running(_before(row), row), row)


def grant_of(row: tuple[Any, ...]) -> int | None:
    """The grant that the lease of this row points to."""
    no: int | None = row[17]
    return no


def fence_before(row: tuple[Any, ...]) -> int:
    """The fence of the last claim before the one that holds now."""
    return _past_decoder.decode(row[11]).fence if row[11] is not None else 0


def _before(row: tuple[Any, ...]) -> JobRecord:
    """As enqueued, or as its last closer look left it."""
    (seq, job_id, queue, type_, requires, priority, created_at, run_at, traits, copy_of, payload, past) = row[
        :12
    ]
    created = instant(created_at)
    record = with_traits(
        JobRecord(
            id=job_id,
            seq=seq,
            type=type_,
            queue=queue,
            state=JobState.READY,
            payload=payload,
            created_at=created,
            updated_at=created,
            priority=priority,
            requires=requires,
            run_at=instant_or_none(run_at),
            speculates_on=copy_of,
        ),
        traits,
    )
    if past is None:
        return record
    known = _past_decoder.decode(past)
    state = JobState.READY if known.update is None else JobState.BLOCKED
    return replace(record, state=state, **{name: getattr(known, name) for name in _PAST_FIELDS})


def _running(record: JobRecord, row: tuple[Any, ...]) -> JobRecord:
    """The same under its lease, if it has one."""
    flags, bumps, fence, updated_at, progress, _, token, worker, started_at, expires_at, extensions = row[
        12:23
    ]
    if flags is None:
        return record
    return replace(
        record,
        state=JobState.RUNNING,
        token=token,
        fence=fence or started_at,
        lease_expires_at=instant(expires_at),
        worker_id=worker,
        settled_token=None,
        cancel_requested=bool(flags & Flags.CANCEL),
        starts=record.starts + 1,
        started_at=instant(started_at),
        progress=None if progress is None else _progress_decoder.decode(progress),
        updated_at=instant(updated_at),
        version=record.version + 1 + extensions + bumps,
    )


def _over(record: JobRecord, row: tuple[Any, ...]) -> JobRecord:
    """The same after its end, if it has ended."""
    state, finished_at, version, started_at, token, result = row[23:29]
    if state is None:
        return record
    if version is None:  # its past says the rest
        return replace(record, state=JobState(state))
    return replace(
        record,
        state=JobState(state),
        finished_at=instant(finished_at),
        updated_at=instant(finished_at),
        version=version,
        starts=1,
        started_at=instant(started_at),
        fence=started_at,
        settled_token=token,
        result=result,
    )


# ------------------------------------------------------------------ instants and spans


def micros_or_none(at: datetime | None) -> int | None:
    return None if at is None else micros(at)


def instant_or_none(us: int | None) -> datetime | None:
    return None if us is None else instant(us)


def _span(span: timedelta | None) -> int | None:
    return None if span is None else span_micros(span)


def _timedelta(us: int | None) -> timedelta | None:
    return None if us is None else timedelta(microseconds=us)
