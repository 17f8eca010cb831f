"""The driver contract as messages: every verb's request and answer, and our errors, as plain data.

What the HTTP driver sends and the server's driver routes read. Bytes travel as base64, instants and
spans in ISO 8601 to the microsecond, errors by name with their data, so that the other side raises
what this side raised.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from taskharbor import errors
from taskharbor.drivers.messages import (
    CancelAnswer,
    Claim,
    Counts,
    Deleted,
    DriverInfo,
    Enqueued,
    Exchanged,
    Extended,
    Page,
    Query,
    QueueInfo,
    Reclaimed,
    Requeued,
    RoleLease,
    Settled,
    Speculated,
    Wakeup,
)
from taskharbor.model.edit import NO_EDIT, Edit
from taskharbor.model.job import JobRecord, Lease, NewJob, Progress
from taskharbor.model.presence import Sample, TypeInfo, WorkerInfo, WorkerReport
from taskharbor.model.queue import QueueRules, QueueSettings
from taskharbor.model.schedule import Schedule, StoredSchedule
from taskharbor.model.settlement import Ack, Cancelled, Fail, Release, Retry, Stalled

Role = Literal["viewer", "producer", "worker", "operator", "admin"]
AnySettlement = Ack | Retry | Fail | Stalled | Cancelled | Release


class Failure(msgspec.Struct, frozen=True, tag=True):
    """One of our errors as data."""

    error: str
    message: str
    data: dict[str, Any] = msgspec.field(default_factory=dict)


class ExchangeAnswer(msgspec.Struct, frozen=True):
    """An Exchanged whose errors are data."""

    settled: list[Settled | Failure]
    claimed: list[JobRecord]
    error: Failure | None = None


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """How one verb travels: its arguments by name, the type of its answer, and who may call it."""

    name: str
    request: type[msgspec.Struct]
    answer: Any
    role: Role


def _verb(name: str, role: Role, answer: Any, /, **arguments: Any) -> Verb:
    fields: list[Any] = [
        (argument, *kind) if isinstance(kind, tuple) else (argument, kind)
        for argument, kind in arguments.items()
    ]
    fields.append(("now", datetime | None, None))
    request = msgspec.defstruct(
        f"{name.title().replace('_', '')}Request",
        fields,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return Verb(name=name, request=request, answer=answer, role=role)


_VERBS = (
    _verb("enqueue", "producer", list[Enqueued], jobs=list[NewJob]),
    _verb("reserve", "worker", list[JobRecord], claim=Claim),
    _verb(
        "extend_leases",
        "worker",
        list[Extended | Failure],
        leases=list[Lease],
        lease_for=timedelta,
        progress=(dict[str, Progress], msgspec.field(default_factory=dict)),
    ),
    _verb("settle", "worker", list[Settled | Failure], settlements=list[AnySettlement]),
    _verb("exchange", "worker", ExchangeAnswer, settlements=list[AnySettlement], claim=Claim),
    _verb("reclaim", "worker", list[Reclaimed], limit=(int, 100)),
    _verb("promote", "worker", int, limit=(int, 1000)),
    _verb("prune", "worker", int, limit=(int, 1000)),
    _verb("cancel", "operator", list[CancelAnswer], ids=list[str]),
    _verb("cancel_waiting", "producer", bool, queue=str, key=bytes),
    _verb(
        "requeue",
        "operator",
        list[Requeued | Failure],
        ids=list[str],
        edit=(Edit, NO_EDIT),
        reset_counts=(bool, True),
        run_at=(datetime | None, None),
        delay=(timedelta | None, None),
    ),
    _verb("delete", "operator", list[Deleted | Failure], ids=list[str]),
    _verb("configure_queue", "operator", QueueRules, settings=QueueSettings),
    _verb("speculate", "worker", Speculated | Failure, job_id=str),
    _verb("get", "viewer", list[JobRecord | None], ids=list[str]),
    _verb("find", "viewer", Page, query=Query),
    _verb("count", "viewer", dict[str, Counts], queues=(list[str] | None, None)),
    _verb("queues", "viewer", list[QueueInfo]),
    _verb(
        "report_worker",
        "worker",
        None,
        report=WorkerReport,
        samples=(list[Sample], msgspec.field(default_factory=list)),
        ttl=timedelta,
    ),
    _verb("forget_worker", "worker", bool, worker_id=str),
    _verb("workers", "viewer", list[WorkerInfo]),
    _verb("types", "viewer", list[TypeInfo]),
    _verb("hold_role", "worker", RoleLease, role=str, holder=str, ttl=timedelta),
    _verb("release_role", "worker", bool, role=str, holder=str),
    _verb("put_schedule", "operator", StoredSchedule, schedule=Schedule),
    _verb("advance_schedule", "worker", bool, name=str, tick=datetime),
    _verb("delete_schedule", "operator", bool, name=str),
    _verb("schedules", "viewer", list[StoredSchedule]),
)
VERBS: dict[str, Verb] = {verb.name: verb for verb in _VERBS}

# Three that are no plain calls: they have routes of their own and take no `now`.
InfoAnswer = DriverInfo
WakeupsAnswer = list[Wakeup]
MigrationsAnswer = list[str]


# ------------------------------------------------------------------ errors


def failure_of(error: errors.TaskHarborError) -> Failure:
    """An error of ours as data; its class by name, its attributes where it has any."""
    data = {name: getattr(error, name) for name in _CARRIED.get(type(error), ())}
    return Failure(type(error).__name__, str(error), msgspec.to_builtins(data))


def error_of(failure: Failure) -> errors.TaskHarborError:
    """The error that the other side had; a name we do not know is an answer we cannot understand."""
    build = _BUILDERS.get(failure.error)
    if build is None:
        return errors.DriverMisbehaved(f"the server answered {failure.error}: {failure.message}")
    try:
        return build(failure)
    except (KeyError, TypeError, ValueError, msgspec.ValidationError):
        return errors.DriverMisbehaved(f"the server answered a malformed {failure.error}: {failure.message}")


_CARRIED: dict[type[errors.TaskHarborError], tuple[str, ...]] = {
    errors.JobNotFound: ("job_id",),
    errors.JobNotInflight: ("job_id",),
    errors.LeaseMismatch: ("job_id",),
    errors.LeaseExpired: ("job_id",),
    errors.LeaseLost: ("job_id",),
    errors.DuplicateJob: ("job_id", "existing_id"),
    errors.NotAllowedInState: ("job_id", "verb", "state"),
    errors.RateLimited: ("queue", "retry_after"),
    errors.InvalidLeaseDuration: ("lease_for",),
    errors.DriverUnavailable: ("done",),
    errors.StoreFull: ("done",),
    errors.SchemaOutOfDate: ("pending",),
}


def _span(value: Any) -> timedelta:
    return msgspec.convert(value, timedelta)


def _of_job(kind: Callable[[str], errors.TaskHarborError]) -> Callable[[Failure], errors.TaskHarborError]:
    return lambda failure: kind(failure.data["job_id"])


def _of_text(kind: Callable[[str], errors.TaskHarborError]) -> Callable[[Failure], errors.TaskHarborError]:
    return lambda failure: kind(failure.message)


_BUILDERS: dict[str, Callable[[Failure], errors.TaskHarborError]] = {
    "JobNotFound": _of_job(errors.JobNotFound),
    "LeaseLost": _of_job(errors.LeaseLost),
    "JobNotInflight": _of_job(errors.JobNotInflight),
    "LeaseMismatch": _of_job(errors.LeaseMismatch),
    "LeaseExpired": _of_job(errors.LeaseExpired),
    "DuplicateJob": lambda f: errors.DuplicateJob(f.data["job_id"], f.data["existing_id"]),
    "NotAllowedInState": lambda f: errors.NotAllowedInState(
        f.data["job_id"], verb=f.data["verb"], state=f.data["state"]
    ),
    "RateLimited": lambda f: errors.RateLimited(f.data["queue"], _span(f.data["retry_after"])),
    "InvalidLeaseDuration": lambda f: errors.InvalidLeaseDuration(_span(f.data["lease_for"])),
    "InvalidArgument": _of_text(errors.InvalidArgument),
    "DriverClosed": _of_text(errors.DriverClosed),
    "DriverUnavailable": lambda f: errors.DriverUnavailable(f.message, done=f.data.get("done")),
    "StoreFull": lambda f: errors.StoreFull(f.message, done=f.data.get("done")),
    "StoreRefused": _of_text(errors.StoreRefused),
    "DriverMisbehaved": _of_text(errors.DriverMisbehaved),
    "SchemaOutOfDate": lambda f: errors.SchemaOutOfDate(f.message, tuple(f.data.get("pending", ()))),
}


# ------------------------------------------------------------------ both sides


def _plain(value: Any) -> Any:
    if isinstance(value, errors.TaskHarborError):
        return failure_of(value)
    raise TypeError(f"{type(value).__qualname__} has no place on the wire")


_encoder = msgspec.json.Encoder(enc_hook=_plain)
_decoders: dict[str, tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]] = {
    verb.name: (msgspec.json.Decoder(verb.request), msgspec.json.Decoder(verb.answer)) for verb in _VERBS
}


def encode(value: Any) -> bytes:
    """Any request or answer as JSON."""
    return _encoder.encode(value)


def read_request(verb: str, body: bytes) -> dict[str, Any]:
    """The arguments of a call, checked. Raises msgspec.DecodeError."""
    return msgspec.structs.asdict(_decoders[verb][0].decode(body))


def read_answer(verb: str, body: bytes) -> Any:
    """The answer of a call as the verb gives it, errors rebuilt. Raises msgspec.DecodeError."""
    answer = _decoders[verb][1].decode(body)
    if isinstance(answer, ExchangeAnswer):
        error = None if answer.error is None else error_of(answer.error)
        return Exchanged(_rebuilt(answer.settled), answer.claimed, error)
    if isinstance(answer, list):
        return _rebuilt(answer)
    return error_of(answer) if isinstance(answer, Failure) else answer


def _rebuilt(items: list[Any]) -> list[Any]:
    return [error_of(item) if isinstance(item, Failure) else item for item in items]
