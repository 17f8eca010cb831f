"""Records as bytes, as Lua and Python both read them; lua/prelude.lua has the same in Lua.

A job is split by how often its parts are written. The head holds the state and is written at every
step. The body holds what was enqueued and is written once. Story, result and progress exist only for
jobs that have one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.redis.family_fields import (
    RELATION_SIZE,
    FamilyFields,
    has_family_fields,
    relation_bytes,
    with_fields,
)
from taskharbor.drivers.redis.keys import rank_of
from taskharbor.drivers.redis.story import NO_STORY, shared_instant, story_in, story_of
from taskharbor.model.clock import instant, micros, span_micros
from taskharbor.model.entropy import id_bytes, id_text
from taskharbor.model.job import NO_TIME, Avoid, JobRecord, NewJob, Progress
from taskharbor.model.state import JobState

KEYED, REMEMBERED, COPY, CANCEL, COPIED, PROGRESS, ALIASED, STORY = 1, 2, 4, 8, 16, 32, 64, 128
CHILD, FAMILY = 32, 64
"""In the state byte: the job has a parent; it has other bonds, a family or notes (family_fields.py)."""
_STATE = 31
KEPT_FLAGS = REMEMBERED | COPIED | ALIASED
"""Flags that do not follow from a record's fields: there may be more to read."""

_HEAD = struct.Struct(">BBBIQIIQQQ")  # state flags rank version updated attempts stalls seq created run_at
_LEASE = struct.Struct(">IQQQ16sB")  # starts fence started until token length-of-worker
_STARTS = struct.Struct(">IQ")
_NO_TOKEN = bytes(16)
_ALIAS = b"\x09"

_WAITING, _BLOCKED, _RUNNING = 0, 1, 2
_CODES = {
    JobState.READY: 0,
    JobState.SCHEDULED: 0,
    JobState.BLOCKED: 1,
    JobState.RUNNING: 2,
    JobState.COMPLETED: 3,
    JobState.FAILED: 4,
    JobState.CANCELLED: 5,
}
_STATES = {code: state for state, code in _CODES.items()} | {0: JobState.READY}


class Body(msgspec.Struct, array_like=True, frozen=True):
    """What was enqueued. Trailing defaults are left out, so a plain job is short."""

    queue: str
    type: str
    payload: bytes
    max_stalls: int = 0
    max_attempts: int = 0
    requires: str = "any"
    timeout: int = 0
    headers: dict[str, str] | None = None
    min_backoff: int | None = None
    max_backoff: int | None = None
    idempotency_key: bytes | None = None
    speculates_on: str | None = None
    avoid: tuple[str, int, tuple[str, ...]] | None = None  # worker, until in µs or 0, others


_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(Body).decode
_decode_progress = msgspec.msgpack.Decoder(tuple[float, str]).decode
_BODY_DEFAULTS = (0, 0, "any", 0, None, None, None, None, None, None)

# ------------------------------------------------------------------ parts of a record


def body_of_new(job: NewJob) -> bytes:
    if job.requires == "any" and job.timeout == NO_TIME and _has_nothing_rare(job):
        if job.max_attempts:
            return _encode((job.queue, job.type, job.payload, job.max_stalls, job.max_attempts))
        if job.max_stalls:
            return _encode((job.queue, job.type, job.payload, job.max_stalls))
        return _encode((job.queue, job.type, job.payload))
    return _body(job)


def _has_nothing_rare(job: NewJob) -> bool:
    return not job.headers and (job.idempotency_key, job.min_backoff, job.max_backoff) == (None, None, None)


def body_of(job: JobRecord) -> bytes:
    return _body(job, job.speculates_on, None if job.avoid is None else _avoid_parts(job.avoid))


def _body(job: NewJob | JobRecord, speculates_on: str | None = None, avoid: Any = None) -> bytes:
    """A `Body`, without the defaults at its end."""
    rest = (
        job.max_stalls,
        job.max_attempts,
        job.requires,
        span_micros(job.timeout),
        job.headers or None,
        span_us(job.min_backoff),
        span_us(job.max_backoff),
        job.idempotency_key,
        speculates_on,
        avoid,
    )
    count = len(rest)
    while count and rest[count - 1] == _BODY_DEFAULTS[count - 1]:
        count -= 1
    return _encode((job.queue, job.type, job.payload, *rest[:count]))


def _avoid_parts(avoid: Avoid) -> tuple[str, int, tuple[str, ...]]:
    return avoid.worker, 0 if avoid.until is None else micros(avoid.until), avoid.others


def _avoid_of(worker: str, until: int, others: tuple[str, ...]) -> Avoid:
    return Avoid(worker, instant(until) if until else None, others)


def avoid_bytes(avoid: Avoid) -> bytes:
    """Which workers may not run a copy, for exchange.lua."""
    return _encode(_avoid_parts(avoid))


def head_fields(ids: Sequence[str]) -> bytes:
    """The names of these jobs' heads in the data hash, concatenated, 17 bytes each."""
    return bytes.fromhex("68" + "68".join(ids).replace("-", ""))  # 68 is "h"


def head_of(job: JobRecord, kept_flags: int, *, had_fields: bool = False) -> bytes:
    """`had_fields`: it has the bit `FAMILY` already; not all of what it means may have been read."""
    flags = kept_flags
    if job.key is not None:
        flags |= KEYED
    if job.speculates_on is not None:
        flags |= COPY
    if job.cancel_requested:
        flags |= CANCEL
    if job.progress is not None:
        flags |= PROGRESS
    if story_of(job) is not None:
        flags |= STORY
    relation = relation_bytes(job)
    has_fields = had_fields or has_family_fields(job)
    head = _HEAD.pack(
        _CODES[job.state] | (CHILD if relation else 0) | (FAMILY if has_fields else 0),
        flags,
        rank_of(job.priority),
        job.version,
        micros(job.updated_at),
        job.attempts,
        job.stalls,
        job.seq,
        micros(job.created_at),
        0 if job.run_at is None else micros(job.run_at) + 1,
    )
    if not (job.starts or job.fence or job.finished_at):
        return head + relation
    token = job.token if job.state is JobState.RUNNING else job.settled_token
    worker = (job.worker_id or "").encode()
    return (
        head
        + _LEASE.pack(
            job.starts,
            job.fence,
            0 if job.started_at is None else micros(job.started_at),
            _until(job),
            _NO_TOKEN if token is None else token_bytes(token),
            len(worker),
        )
        + worker
        + (job.queue.encode() if job.state is JobState.RUNNING else b"")
        + relation
    )


def _until(job: JobRecord) -> int:
    until = job.lease_expires_at if job.state is JobState.RUNNING else job.finished_at
    return 0 if until is None else micros(until)


def alias_head(target: str) -> bytes:
    """The head of an alias: it names the job."""
    return _ALIAS + id_bytes(target)


def alias_in(head: bytes | None) -> str | None:
    """The job that an alias names; None if this is no alias."""
    return id_text(head[1:]) if head is not None and head[:1] == _ALIAS else None


def flags_in(head: bytes) -> int:
    return head[1]


def progress_bytes(progress: Progress) -> bytes:
    return _encode((progress.fraction, progress.text))


# ------------------------------------------------------------------ whole records


def record_of(
    packed_id: bytes,
    head: bytes,
    body: bytes,
    *,
    story: bytes | None = None,
    result: bytes | None = None,
    progress: bytes | None = None,
    key: bytes | None = None,
    of_family: FamilyFields | None = None,
) -> JobRecord:
    """A stored record including its token, which must not leave the driver.

    A waiting job is ready or scheduled by its `run_at`: see `shown`.
    """
    code, flags, rank, version, updated, attempts, stalls, seq, created, run_at = _HEAD.unpack_from(head)
    relation = head[-RELATION_SIZE:] if code & CHILD else b""
    code &= _STATE
    starts = fence = started = until = size = 0
    token = _NO_TOKEN
    if len(head) > _HEAD.size + len(relation):
        starts, fence, started, until, token, size = _LEASE.unpack_from(head, _HEAD.size)
    what = _decode_body(body)
    past = story_in(story) if story else NO_STORY
    is_running = code == _RUNNING
    a_token = None if token == _NO_TOKEN else token.hex()
    job = JobRecord(
        id=id_text(packed_id),
        seq=seq,
        type=what.type,
        queue=what.queue,
        state=_STATES[code],
        payload=what.payload,
        created_at=instant(created),
        updated_at=instant(updated),
        version=version,
        key=key,
        idempotency_key=what.idempotency_key,
        headers=what.headers or {},
        priority=100 - rank,
        requires=what.requires,
        run_at=instant(run_at - 1) if run_at else None,
        timeout=timedelta(microseconds=what.timeout) if what.timeout else NO_TIME,
        attempts=attempts,
        max_attempts=what.max_attempts,
        stalls=stalls,
        max_stalls=what.max_stalls,
        starts=starts,
        min_backoff=span(what.min_backoff),
        max_backoff=span(what.max_backoff),
        token=a_token if is_running else None,
        settled_token=None if is_running else a_token,
        fence=fence,
        lease_expires_at=instant(until) if is_running else None,
        worker_id=head[92 : 92 + size].decode() if size else None,
        cancel_requested=bool(flags & CANCEL),
        last_error=past.last_error,
        failed_at=past.failed_at,
        failure_kind=past.failure_kind,
        started_at=instant(started) if starts else None,
        finished_at=instant(until) if code > _RUNNING else None,
        result=result,
        progress=Progress(*_decode_progress(progress)) if progress else None,
        history=past.history,
        update=past.update,
        speculates_on=what.speculates_on,
        avoid=None if what.avoid is None else _avoid_of(*what.avoid),
    )
    return job if of_family is None and not relation else with_fields(job, relation, of_family)


More = tuple[bytes | None, bytes | None, FamilyFields | None]
"""What only some of the jobs of a claim have: story, key, fields of the family."""


class ClaimGrant(NamedTuple):
    """What all jobs of one claim share."""

    token: str
    worker_id: str
    at: datetime
    at_us: int
    expires_at: datetime


def claimed_records(parts: Sequence[bytes], more: Mapping[int, More], handed: ClaimGrant) -> list[JobRecord]:
    """The records just claimed: id, head and body of each; `more` by index."""
    # More than 15 keywords are passed as a dict: a changed copy costs a third of a whole record.
    model, jobs = _model(handed), []
    models: dict[tuple[Any, ...], JobRecord] = {}
    for place, (packed_id, head, body) in enumerate(zip(parts[::3], parts[1::3], parts[2::3], strict=True)):
        code, flags, rank, version, _, attempts, stalls, seq, created, run_at = _unpack_head(head)
        story, key, of_family = more.get(place, _NO_MORE)
        if flags & _RARE:
            jobs.append(record_of(packed_id, head, body, story=story, key=key, of_family=of_family))
            continue
        what = _decode_body(body)
        kind = (
            *(what.type, what.queue, what.requires, what.max_stalls, what.max_attempts),
            *(what.timeout, what.min_backoff, what.max_backoff),
        )
        like = models.get(kind)
        if like is None:
            like = models[kind] = _like(model, what)
        job = replace(
            like,
            id=id_text(packed_id),
            seq=seq,
            payload=what.payload,
            created_at=shared_instant(created),
            version=version + 1,
            headers=what.headers or {},
            priority=100 - rank,
            run_at=shared_instant(run_at - 1) if run_at else None,
        )
        if code & _STATE == _RUNNING:  # else it is the head before the claim: it never ran and has no flags
            starts, fence = _STARTS.unpack_from(head, _HEAD.size)
            job = replace(job, version=version, attempts=attempts, stalls=stalls, starts=starts, fence=fence)
        if story:
            job = _with_story(job, story)
        if key is not None or what.idempotency_key is not None:
            job = replace(job, key=key, idempotency_key=what.idempotency_key)
        if code > _STATE:
            job = with_fields(job, head[-RELATION_SIZE:] if code & CHILD else b"", of_family)
        jobs.append(job)
    return jobs


def _model(handed: ClaimGrant) -> JobRecord:
    """A job on its first claim, but for what is its own."""
    return JobRecord(
        id="",
        seq=0,
        type="",
        queue="",
        state=JobState.RUNNING,
        payload=b"",
        created_at=handed.at,
        updated_at=handed.at,
        starts=1,
        token=handed.token,
        fence=handed.at_us,
        lease_expires_at=handed.expires_at,
        worker_id=handed.worker_id,
        started_at=handed.at,
    )


_NO_MORE: More = (None, None, None)
_RARE = ~(KEYED | REMEMBERED | ALIASED | STORY)
_unpack_head = _HEAD.unpack_from


def _like(model: JobRecord, what: Body) -> JobRecord:
    """What the jobs of a claim share that were enqueued with the same options."""
    return replace(
        model,
        type=what.type,
        queue=what.queue,
        requires=what.requires,
        max_stalls=what.max_stalls,
        max_attempts=what.max_attempts,
        timeout=span(what.timeout) or NO_TIME,
        min_backoff=span(what.min_backoff),
        max_backoff=span(what.max_backoff),
    )


def _with_story(job: JobRecord, story: bytes) -> JobRecord:
    past = story_in(story)
    return replace(
        job,
        last_error=past.last_error,
        failed_at=past.failed_at,
        failure_kind=past.failure_kind,
        history=past.history,
        update=past.update,
    )


def queue_in(body: bytes) -> str:
    return _decode_body(body).queue


# ------------------------------------------------------------------ values


def token_bytes(token: str) -> bytes:
    """Our tokens are 32 hex digits; anything else matches no lease."""
    try:
        return bytes.fromhex(token) if len(token) == 32 else b""
    except ValueError:
        return b""


def now_arg(now: datetime | None) -> int | str:
    """The `now` argument of a script: microseconds, or '' for the server's clock."""
    return "" if now is None else micros(now)


def span(us: int | None) -> timedelta | None:
    return None if us is None else timedelta(microseconds=us)


def span_us(value: timedelta | None) -> int | None:
    return None if value is None else span_micros(value)
