"""One line of a history: the process, its call, the result, and what the store answered.

Every call of a client or worker is written down twice: `invoke` when it leaves, and then how it
ended. A call about several jobs makes one event per job, tied together by `call`; a claim makes one
`reserve` for itself and one `grant` per job it brought.

    invoke ──► ok        the store did it; `at` and `version` are the store's word
           ├─► fail      it was certainly not done; `result` names the error
           └─► unknown   no answer; the store may have done it, or may do it later

Instants are microseconds since 1970 on the deciding clock (`at`, `until`, `run_at`) or microseconds
of the recorder's monotonic clock (`t`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Literal

import msgspec

from taskharbor.model.bonds import Bonds
from taskharbor.model.clock import micros
from taskharbor.model.job import FAILURE_TYPE, JobRecord, NewJob
from taskharbor.model.queue import QueueRules

_MICROSECOND = timedelta(microseconds=1)

Kind = Literal["invoke", "ok", "fail", "unknown"]

SETTLEMENTS = frozenset({"ack", "retry", "fail", "stalled", "cancelled", "release", "park"})
CHANGES = SETTLEMENTS | {
    "enqueue",
    "grant",
    "extend",
    "reclaim",
    "cancel",
    "requeue",
    "delete",
    "speculate",
    "note",
    "resolve",
}
"""Operations whose `ok` may be a change of one job, with its version."""

MARKS = frozenset({"fault", "heal", "drained"})
"""Noted by the test itself: something was done to `process`; all faults are over; nothing is left to do."""


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What is known of a job at one moment: as it was sent, handed out or looked at."""

    type: str = ""
    queue: str = ""
    digest: str = ""  # of the payload: two jobs with the same digest carry the same bytes
    headers: str = ""  # of the headers; empty when there are none
    key: str = ""
    idempotency_key: str = ""
    priority: int = 0
    lane: str = "any"
    run_at: int | None = None
    delay: int | None = None
    created_at: int = 0
    seq: int = 0
    attempts: int = 0
    max_attempts: int = 0
    stalls: int = 0
    max_stalls: int = 0
    starts: int = 0
    fence: int = 0
    failure_kind: str = ""
    cancel_requested: bool = False
    speculates_on: str = ""
    has_bonds: bool = False  # of a family: what others do may end, stop, release or open it
    parent: str = ""
    about: str = ""  # the failed job that a failure job is about
    about_digest: str = ""


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event. Which fields are filled depends on `op`; empty means not known or not meant."""

    kind: Kind
    op: str
    process: str = ""
    call: int = 0
    t: int = 0
    job: str = ""
    at: int | None = None
    version: int = 0
    token: str = ""
    worker: str = ""
    queue: str = ""
    state: str = ""
    result: str = ""  # what an `ok` came to (created, requested, …), the error of a `fail`, a word of a mark
    until: int | None = None  # when the lease ends, as the store answered
    span: int | None = None  # how long a lease was asked for; how long a retry was to wait
    limit: int = 0
    queues: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    types: tuple[str, ...] | None = None
    resets: bool = False  # a requeue that forgets the counts
    is_lost: bool = False  # the store did it, and the caller never heard of it
    facts: Facts | None = None
    rules: QueueRules | None = None


def facts_of(record: JobRecord) -> Facts:
    """A stored job, as handed out or looked at."""
    about, about_digest = _about(record.type, record.payload)
    return Facts(
        type=record.type,
        queue=record.queue,
        digest=digest_of(record.payload),
        headers=_headers_digest(record.headers),
        key=_text(record.key),
        idempotency_key=_text(record.idempotency_key),
        priority=record.priority,
        lane=record.requires,
        run_at=None if record.run_at is None else micros(record.run_at),
        created_at=micros(record.created_at),
        seq=record.seq,
        attempts=record.attempts,
        max_attempts=record.max_attempts,
        stalls=record.stalls,
        max_stalls=record.max_stalls,
        starts=record.starts,
        fence=record.fence,
        failure_kind=record.failure_kind or "",
        cancel_requested=record.cancel_requested,
        speculates_on=record.speculates_on or "",
        has_bonds=record.bonds is not None or record.family is not None,
        parent=_parent(record.bonds),
        about=about,
        about_digest=about_digest,
    )


def facts_of_new(job: NewJob) -> Facts:
    """A job on its way in. `delay` counts from the store's clock, so its run_at is not known yet."""
    return Facts(
        type=job.type,
        queue=job.queue,
        digest=digest_of(job.payload),
        headers=_headers_digest(job.headers),
        key=_text(job.key),
        idempotency_key=_text(job.idempotency_key),
        priority=job.priority,
        lane=job.requires,
        run_at=None if job.run_at is None else micros(job.run_at),
        delay=None if job.delay is None else job.delay // _MICROSECOND,
        max_attempts=job.max_attempts,
        max_stalls=job.max_stalls,
        has_bonds=job.bonds is not None,
        parent=_parent(job.bonds),
    )


def digest_of(payload: bytes) -> str:
    """A short name for these bytes."""
    return hashlib.blake2b(payload, digest_size=8).hexdigest()


def write_history(events: Iterable[HistoryEvent], path: Path) -> None:
    """One JSON object per line."""
    with path.open("wb") as file:
        for event in events:
            file.write(event_line(event))


def event_line(event: HistoryEvent) -> bytes:
    return _encoder.encode(event) + b"\n"


def read_history(*paths: Path) -> Iterator[HistoryEvent]:
    """The events of these files, in the order of their `t`: one file per process is the usual case."""
    events = [_decoder.decode(line) for path in paths for line in _whole_lines(path)]
    return iter(sorted(events, key=lambda event: event.t))


def history_hash(events: Iterable[HistoryEvent]) -> str:
    """One name for a whole history: equal hashes, equal runs."""
    digest = hashlib.sha256()
    for event in events:
        digest.update(_encoder.encode(event))
    return digest.hexdigest()


def _whole_lines(path: Path) -> Iterator[bytes]:
    """A process that was killed may have left half a line behind."""
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield line


class _FailureNote(msgspec.Struct):
    id: str
    payload: bytes = b""  # base64 in JSON


def _about(type: str, payload: bytes) -> tuple[str, str]:
    if type != FAILURE_TYPE:
        return "", ""
    try:
        note = _note_decoder.decode(payload)
    except msgspec.DecodeError:
        return "", ""
    return note.id, digest_of(note.payload)


def _headers_digest(headers: Mapping[str, str]) -> str:
    return digest_of(repr(sorted(headers.items())).encode("utf-8", "surrogatepass")) if headers else ""


def _parent(bonds: Bonds | None) -> str:
    return "" if bonds is None or bonds.parent is None else bonds.parent


def _text(key: bytes | None) -> str:
    return "" if key is None else key.decode("utf-8", "backslashreplace")


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(HistoryEvent)
_note_decoder = msgspec.json.Decoder(_FailureNote)
