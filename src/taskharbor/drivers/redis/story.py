"""The story of a job as bytes: its past attempts, and its last error with the flags of a blocked job.

The number of attempts (1 byte), the size of all (4 bytes), each attempt behind its own size (4 bytes), then
the rest: lua/story.lua adds an attempt without reading the others. Attempts and rest are MessagePack.
"""

from __future__ import annotations

import struct
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

import msgspec

from taskharbor.model.clock import instant, micros
from taskharbor.model.job import AttemptRecord, JobRecord, RunAtRule, Update

_FRONT = struct.Struct(">BI")  # how many attempts, and their size
_SIZE = struct.Struct(">I")
_NO_PAST = (None, None, None, None, ())


class StoredAttempt(msgspec.Struct, array_like=True, frozen=True):
    """An AttemptRecord as it is stored; an older one names no class."""

    fence: int
    worker_id: str
    started_at: int
    ended_at: int
    outcome: str
    error: str | None = None
    error_class: str | None = None


class Story(NamedTuple):
    last_error: str | None = None
    failed_at: datetime | None = None
    failure_kind: str | None = None
    update: Update | None = None
    history: tuple[AttemptRecord, ...] = ()


NO_STORY = Story()
shared_instant = lru_cache(256)(instant)
"""For instants that many jobs have: those of one call, and of the attempts that it ended."""
_encode = msgspec.msgpack.Encoder().encode
_decode_attempt = msgspec.msgpack.Decoder(StoredAttempt).decode
_decode_rest = msgspec.msgpack.Decoder(tuple[str | None, int | None, str | None, str | None]).decode


def story_of(job: JobRecord) -> bytes | None:
    """None if there is nothing to keep."""
    if (job.last_error, job.failed_at, job.failure_kind, job.update, job.history) == _NO_PAST:
        return None
    attempts = [_attempt_bytes(attempt) for attempt in job.history]
    entries = b"".join(_SIZE.pack(len(attempt)) + attempt for attempt in attempts)
    failed_at = None if job.failed_at is None else micros(job.failed_at)
    update = None if job.update is None else _flags_text(job.update)
    rest = _encode((job.last_error, failed_at, job.failure_kind, update))
    return _FRONT.pack(len(attempts), len(entries)) + entries + rest


def _attempt_bytes(a: AttemptRecord) -> bytes:
    started, ended = micros(a.started_at), micros(a.ended_at)
    return _encode((a.fence, a.worker_id, started, ended, a.outcome, a.error, a.error_class))


def story_in(packed: bytes) -> Story:
    count, size = _FRONT.unpack_from(packed)
    at, attempts = _FRONT.size, []
    for _ in range(count):
        (length,) = _SIZE.unpack_from(packed, at)
        attempts.append(attempt_in(packed[at + 4 : at + 4 + length]))
        at += 4 + length
    last_error, failed_at, kind, update = _decode_rest(packed[_FRONT.size + size :])
    return Story(
        last_error,
        None if failed_at is None else shared_instant(failed_at),
        kind,
        None if update is None else _update_of(update),
        tuple(attempts),
    )


def attempt_in(packed: bytes) -> AttemptRecord:
    a = _decode_attempt(packed)
    started, ended = shared_instant(a.started_at), shared_instant(a.ended_at)
    return AttemptRecord(a.fence, a.worker_id, started, ended, a.outcome, a.error, a.error_class)


# ------------------------------------------------------------------ the flags of an update

_SIGNS = {True: "1", False: "0", None: "-"}
_RUN_AT_SIGNS = {True: "1", False: "0", "if_later": "L", "if_earlier": "E"}
_RUN_AT_RULES: dict[str, RunAtRule] = {"1": True, "0": False, "L": "if_later", "E": "if_earlier"}


def _flags_text(update: Update) -> str:
    """Four characters."""
    return (
        _SIGNS[update.data]
        + _RUN_AT_SIGNS[update.run_at]
        + _SIGNS[update.retry]
        + _SIGNS[update.reset_counts]
    )


def _update_of(flags: str) -> Update:
    data, run_at, retry, reset = tuple(flags)
    return Update(
        data=data == "1",
        run_at=_RUN_AT_RULES[run_at],
        retry=retry == "1",
        reset_counts=None if reset == "-" else reset == "1",
    )
