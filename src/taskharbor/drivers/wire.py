"""The driver contract as messages: every verb's request and answer, and our errors, as plain data.

What the HTTP driver sends and the server's driver routes read: `POST /api/driver/{verb}` with the
arguments as one JSON object. Bytes travel as base64, instants and spans in ISO 8601 to the microsecond,
errors by name with their data, so that the other side raises what this side raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from taskharbor import errors
from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.error_codec import Failure, error_of, failure_of
from taskharbor.drivers.messages import (
    CancelAnswer,
    Claim,
    Claimed,
    Counts,
    Deleted,
    DriverInfo,
    Enqueued,
    Exchanged,
    Extended,
    FamilyEnd,
    Noted,
    Page,
    Promoted,
    Query,
    QueueInfo,
    Reclaimed,
    Requeued,
    Resolution,
    Resolved,
    RoleLease,
    Settled,
    Speculated,
    Wakeup,
)
from taskharbor.model.checks import ID_PATTERN, MAX_BATCH, MAX_TEXT, NAME_PATTERN
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.job import JobRecord, Lease, NewJob, Note, Progress
from taskharbor.model.logbook import LogEntry, LogKey
from taskharbor.model.presence import Sample, TypeInfo, WorkerInfo, WorkerReport
from taskharbor.model.queue import QueueRules, QueueSettings
from taskharbor.model.schedule import Schedule, StoredSchedule
from taskharbor.model.settlement import Ack, Cancelled, Fail, Park, Release, Retry, Stalled
from taskharbor.model.speculation import HeadStart

PROTOCOL = 1
"""Raised when old and new can no longer talk; what is only added does not count."""

PROTOCOL_HEADER = "TaskHarbor-Protocol"
CALL_HEADER = "TaskHarbor-Call"
"""The id of a call; a call that is sent again after a lost reply keeps it."""
REPEAT_HEADER = "TaskHarbor-Repeat"
"""On a call that is sent again: `BOOT SECONDS`, which server was asked first and how long ago."""
BOOT_HEADER = "TaskHarbor-Boot"
"""In every response: which start of which server sent it."""

Role = Literal["viewer", "producer", "worker", "operator", "admin"]
AnySettlement = Ack | Retry | Fail | Stalled | Cancelled | Release | Park


class ExchangeAnswer(msgspec.Struct, frozen=True):
    """An Exchanged whose errors are data."""

    settled: list[Settled | Failure]
    claimed: list[JobRecord]
    error: Failure | None = None
    given_up: tuple[Reclaimed, ...] = ()
    ended: tuple[FamilyEnd, ...] = ()


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says about itself when a driver is opened."""

    version: str
    capabilities: Capabilities
    takes_now: bool
    max_body: int
    max_payload: int


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """How one verb travels: its arguments by name, and the type of its answer.

    `is_change`: it may change something. `may_repeat`: done twice, it is as if it were done once, so a caller
    that does not know may just ask again. Who may call it is in web/permissions.py.
    """

    name: str
    request: type[msgspec.Struct]
    answer: Any
    is_change: bool
    may_repeat: bool


_LOOKING = {
    "hello",
    "info",
    "wakeups",
    "pending_migrations",
    "get",
    "find",
    "count",
    "queues",
    "workers",
    "types",
    "schedules",
    "read_log",
}
_NOT_TWICE = {
    "settle",
    "exchange",
    "cancel_waiting",
    "requeue",
    "delete",
    "speculate",
    "forget_worker",
    "release_role",
    "delete_schedule",
}
_WITHOUT_NOW = {"hello", "info", "wakeups", "ring", "pending_migrations", "migrate"}


def _verb(name: str, answer: Any, /, **arguments: Any) -> Verb:
    fields: list[Any] = [
        (argument, *kind) if isinstance(kind, tuple) else (argument, kind)
        for argument, kind in arguments.items()
    ]
    if name not in _WITHOUT_NOW:
        fields.append(("now", datetime | None, None))
    request = msgspec.defstruct(
        f"{name.title().replace('_', '')}Request",
        fields,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return Verb(
        name=name,
        request=request,
        answer=answer,
        is_change=name not in _LOOKING,
        may_repeat=name not in _NOT_TWICE,
    )


# For readers of the OpenAPI document: the verbs check their arguments themselves and raise our own errors.
Name = Annotated[str, Meta(extra_json_schema={"pattern": f"^{NAME_PATTERN}$"})]
JobId = Annotated[str, Meta(extra_json_schema={"pattern": f"^{ID_PATTERN}$"})]
WorkerId = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_TEXT})]
Limit = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": MAX_BATCH})]

_VERBS = (
    _verb("hello", Hello),
    _verb("info", DriverInfo),
    # Answered by a stream of lines: a Wakeup as JSON each, or nothing as a sign of life.
    _verb("wakeups", Wakeup, queues=list[Name], worker_id=WorkerId),
    _verb("pending_migrations", list[str]),
    _verb("migrate", list[str]),
    _verb("enqueue", list[Enqueued], jobs=list[NewJob], by=(Lease | None, None)),
    _verb("ring", None, queues=list[Name]),
    _verb("reserve", Claimed, claim=Claim),
    _verb(
        "extend_leases",
        list[Extended | Failure],
        leases=list[Lease],
        lease_for=timedelta,
        progress=(dict[str, Progress], msgspec.field(default_factory=dict)),
    ),
    _verb("settle", list[Settled | Failure], settlements=list[AnySettlement]),
    _verb("exchange", ExchangeAnswer, settlements=list[AnySettlement], claim=Claim),
    _verb("note", list[Noted | Failure], notes=list[Note]),
    _verb("resolve", list[Resolved | Failure], items=list[Resolution]),
    _verb("reclaim", list[Reclaimed], limit=(Limit, 100)),
    _verb("promote", Promoted, limit=(Limit, 1000)),
    _verb("prune", int, limit=(Limit, 1000)),
    _verb("cancel", list[CancelAnswer], ids=list[JobId]),
    _verb("cancel_waiting", bool, queue=Name, key=bytes),
    _verb(
        "requeue",
        list[Requeued | Failure],
        ids=list[JobId],
        queue=(Name | None, None),
        edit=(Edit, NO_EDIT),
        reset_counts=(bool, True),
        run_at=(datetime | None, None),
        delay=(timedelta | None, None),
    ),
    _verb("delete", list[Deleted | Failure], ids=list[JobId]),
    _verb("configure_queue", QueueRules, settings=QueueSettings),
    _verb("speculate", Speculated | Failure, job_id=JobId, head_start=(HeadStart | None, None)),
    _verb("get", list[JobRecord | None], ids=list[JobId], payloads=(bool, True)),
    _verb("find", Page, query=Query),
    _verb("count", dict[str, Counts], queues=(list[Name] | None, None)),
    _verb("queues", list[QueueInfo]),
    _verb(
        "report_worker",
        None,
        report=WorkerReport,
        samples=(list[Sample], msgspec.field(default_factory=list)),
        ttl=timedelta,
    ),
    _verb("forget_worker", bool, worker_id=WorkerId),
    _verb("workers", list[WorkerInfo]),
    _verb("types", list[TypeInfo]),
    _verb("hold_role", RoleLease, role=Name, holder=WorkerId, ttl=timedelta),
    _verb("release_role", bool, role=Name, holder=WorkerId),
    _verb("put_schedule", StoredSchedule, schedule=Schedule),
    _verb("advance_schedule", bool, name=Name, tick=datetime, fired=(bool, True)),
    _verb("delete_schedule", bool, name=Name),
    _verb("schedules", list[StoredSchedule]),
    _verb(
        "write_log",
        None,
        entries=list[LogEntry],
        instead_of=(list[LogKey], msgspec.field(default_factory=list)),
    ),
    _verb(
        "read_log",
        list[LogEntry],
        book=Name,
        since=datetime,
        until=datetime,
        limit=(Limit, 1000),
        newest_first=(bool, False),
    ),
)
VERBS: dict[str, Verb] = {verb.name: verb for verb in _VERBS}


# ------------------------------------------------------------------ both sides


def _plain(value: Any) -> Any:
    if isinstance(value, errors.TaskHarborError):
        return failure_of(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__qualname__} has no place on the wire")


_encoder = msgspec.json.Encoder(enc_hook=_plain)
_decoders: dict[str, tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]] = {
    verb.name: (msgspec.json.Decoder(verb.request), msgspec.json.Decoder(verb.answer)) for verb in _VERBS
}


def encode(value: Any) -> bytes:
    """Any request or answer as JSON. Half characters in texts, which JSON has no way to write, become `?`."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_mended(msgspec.to_builtins(value, enc_hook=_plain)))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {_mended(name): _mended(item) for name, item in value.items()}
    return value


def read_request(verb: str, body: bytes) -> dict[str, Any]:
    """The arguments of a call, checked. Raises msgspec.DecodeError."""
    return msgspec.structs.asdict(_decoders[verb][0].decode(body))


def read_answer(verb: str, body: bytes) -> Any:
    """The answer of a call as the verb gives it, errors rebuilt. Raises msgspec.DecodeError."""
    answer = _decoders[verb][1].decode(body)
    if isinstance(answer, ExchangeAnswer):
        error = None if answer.error is None else error_of(answer.error)
        return Exchanged(_rebuilt(answer.settled), answer.claimed, error, answer.given_up, answer.ended)
    if isinstance(answer, list):
        return _rebuilt(answer)
    return error_of(answer) if isinstance(answer, Failure) else answer


def _rebuilt(items: list[Any]) -> list[Any]:
    return [error_of(item) if isinstance(item, Failure) else item for item in items]
