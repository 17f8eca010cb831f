"""Driver calls as events: what a verb asks of the store, and what the store answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from taskharbor.drivers.messages import (
    Claim,
    Claimed,
    Exchanged,
    Extended,
    Noted,
    Reclaimed,
    Requeued,
    Resolution,
    Resolved,
    Settled,
    Speculated,
)
from taskharbor.errors import DriverUnavailable, TaskHarborError
from taskharbor.model.clock import micros, span_micros
from taskharbor.model.edit import NO_EDIT
from taskharbor.model.job import JobRecord, Lease, NewJob
from taskharbor.model.queue import QueueRules
from taskharbor.model.settlement import Settlement
from taskharbor.testing.history.events import HistoryEvent, Kind, facts_of, facts_of_new


def questions(verb: str, args: tuple[Any, ...]) -> list[HistoryEvent]:
    """One `invoke` per thing that this call asks for; none for verbs that are about no job."""
    ask = _QUESTIONS.get(verb)
    return [] if ask is None else ask(*args)


def answers(verb: str, asked: list[HistoryEvent], answer: Any, at: int | None) -> list[HistoryEvent]:
    """The events of an answered call. `at` is the store's time where the answer does not say it."""
    read = _ANSWERS.get(verb)
    return [] if read is None else read(asked, answer, at)


def refusals(asked: list[HistoryEvent], error: BaseException, at: int | None) -> list[HistoryEvent]:
    """The events of a call that raised: certainly not done, or unknown."""
    name, kind = type(error).__name__, _kind_of(error)
    return [replace(event, kind=kind, result=name, at=at, facts=None) for event in asked]


def _kind_of(error: BaseException) -> Kind:
    if isinstance(error, DriverUnavailable):
        return "unknown" if error.done is None else "fail"
    return "fail" if isinstance(error, TaskHarborError) else "unknown"


# ------------------------------------------------------------------ what is asked


def _ask_enqueue(jobs: Sequence[NewJob]) -> list[HistoryEvent]:
    return [HistoryEvent(kind="invoke", op="enqueue", job=job.id, facts=facts_of_new(job)) for job in jobs]


def _ask_reserve(claim: Claim) -> list[HistoryEvent]:
    return [
        HistoryEvent(
            kind="invoke",
            op="reserve",
            worker=claim.worker_id,
            queues=claim.queues,
            lanes=claim.lanes,
            types=claim.types,
            limit=claim.limit,
            span=span_micros(claim.lease_for),
            rules=None if claim.rate is None else QueueRules(execute_rate=claim.rate),
        )
    ]


def _ask_extend(leases: Sequence[Lease], lease_for: timedelta, _: object) -> list[HistoryEvent]:
    span = span_micros(lease_for)
    return [
        HistoryEvent(kind="invoke", op="extend", job=lease.job_id, token=lease.token, span=span)
        for lease in leases
    ]


def _ask_settle(settlements: Sequence[Settlement]) -> list[HistoryEvent]:
    return [_ask_one(settlement) for settlement in settlements]


def _ask_one(settlement: Settlement) -> HistoryEvent:
    delay: timedelta | None = getattr(settlement, "delay", None)
    return HistoryEvent(
        kind="invoke",
        op=type(settlement).__name__.lower(),
        job=settlement.lease.job_id,
        token=settlement.lease.token,
        span=None if delay is None else span_micros(delay),
        until=_micros(getattr(settlement, "run_at", None)),
        result=getattr(settlement, "failure_kind", ""),
    )


def _ask_ids(op: str) -> Callable[..., list[HistoryEvent]]:
    return lambda ids, *_: [HistoryEvent(kind="invoke", op=op, job=job_id) for job_id in ids]


def _ask_requeue(
    ids: Sequence[str], edit: object, resets: bool, run_at: datetime | None, delay: timedelta | None
) -> list[HistoryEvent]:
    span = None if delay is None else span_micros(delay)
    result = "" if edit == NO_EDIT else "edited"
    return [
        HistoryEvent(
            kind="invoke",
            op="requeue",
            job=job_id,
            resets=resets,
            until=_micros(run_at),
            span=span,
            result=result,
        )
        for job_id in ids
    ]


def _ask_resolve(items: Sequence[Resolution]) -> list[HistoryEvent]:
    return [
        HistoryEvent(
            kind="invoke",
            op="resolve",
            job=item.id,
            facts=None if item.new is None else facts_of_new(item.new),
        )
        for item in items
    ]


_QUESTIONS: dict[str, Callable[..., list[HistoryEvent]]] = {
    "enqueue": _ask_enqueue,
    "enqueue_family": lambda jobs, _by: _ask_enqueue(jobs),
    "note": lambda notes: [
        HistoryEvent(kind="invoke", op="note", job=note.lease.job_id, token=note.lease.token)
        for note in notes
    ],
    "resolve": _ask_resolve,
    "reserve": _ask_reserve,
    "extend_leases": _ask_extend,
    "settle": _ask_settle,
    "exchange": lambda settlements, claim: _ask_settle(settlements) + _ask_reserve(claim),
    "reclaim": lambda limit: [HistoryEvent(kind="invoke", op="sweep", limit=limit)],
    "cancel": _ask_ids("cancel"),
    "cancel_waiting": lambda queue, key: [
        HistoryEvent(
            kind="invoke", op="cancel_waiting", queue=queue, result=key.decode("utf-8", "backslashreplace")
        )
    ],
    "requeue": _ask_requeue,
    "delete": _ask_ids("delete"),
    "speculate": lambda job_id, _head_start: [HistoryEvent(kind="invoke", op="speculate", job=job_id)],
    "configure_queue": lambda settings: [HistoryEvent(kind="invoke", op="configure", queue=settings.queue)],
    "get": _ask_ids("look"),
}


# ------------------------------------------------------------------ what was answered


def _after_enqueue(asked: list[HistoryEvent], answer: Any, at: int | None) -> list[HistoryEvent]:
    return [
        replace(
            event,
            kind="ok",
            job=reply.id,
            token=""
            if reply.id == event.job
            else event.job,  # the id that was sent, when another one carries it
            result=reply.result.value,
            at=_first(at, reply.at),
            version=reply.version,
        )
        for event, reply in zip(asked, answer, strict=True)
    ]


def _after_note(asked: list[HistoryEvent], answer: Any, at: int | None) -> list[HistoryEvent]:
    return [
        replace(event, kind="ok", at=_first(at, reply.at), version=reply.version)
        if isinstance(reply, Noted)
        else _refused(event, reply, at)
        for event, reply in zip(asked, answer, strict=True)
    ]


def _after_resolve(asked: list[HistoryEvent], answer: Any, at: int | None) -> list[HistoryEvent]:
    return [
        replace(event, kind="ok", at=_first(at, reply.at), version=reply.version, state=reply.state.value)
        if isinstance(reply, Resolved)
        else _refused(event, reply, at)
        for event, reply in zip(asked, answer, strict=True)
    ]


def _after_reserve(asked: list[HistoryEvent], answer: Claimed, at: int | None) -> list[HistoryEvent]:
    return _granted(asked, answer.jobs, at)


def _granted(asked: list[HistoryEvent], jobs: list[JobRecord], at: int | None) -> list[HistoryEvent]:
    [claim] = asked
    granted = [_grant(claim, record, at) for record in jobs]
    when = granted[0].at if granted else at
    return [*granted, replace(claim, kind="ok", at=when, version=len(granted))]


def _grant(claim: HistoryEvent, record: JobRecord, at: int | None) -> HistoryEvent:
    return HistoryEvent(
        kind="ok",
        op="grant",
        process=claim.process,
        call=claim.call,
        job=record.id,
        at=_first(at, record.started_at),
        version=record.version,
        token=record.token or "",
        worker=record.worker_id or "",
        queue=record.queue,
        until=_micros(record.lease_expires_at),
        span=claim.span,
        facts=facts_of(record),
    )


def _after_extend(asked: list[HistoryEvent], answer: Any, at: int | None) -> list[HistoryEvent]:
    return [
        replace(
            event,
            kind="ok",
            at=_first(at, reply.at),
            version=reply.version,
            until=_micros(reply.lease.expires_at),
            result="cancel" if reply.cancel_requested else "",
        )
        if isinstance(reply, Extended)
        else _refused(event, reply, at)
        for event, reply in zip(asked, answer, strict=True)
    ]


def _after_settle(asked: list[HistoryEvent], answer: Any, at: int | None) -> list[HistoryEvent]:
    return [
        replace(event, kind="ok", at=_first(at, reply.at), version=reply.version, state=reply.state.value)
        if isinstance(reply, Settled)
        else _refused(event, reply, at)
        for event, reply in zip(asked, answer, strict=True)
    ]


def _after_exchange(asked: list[HistoryEvent], answer: Exchanged, at: int | None) -> list[HistoryEvent]:
    settled = _after_settle(asked[:-1], answer.settled, at)
    if answer.error is not None:
        return settled + refusals(asked[-1:], answer.error, at)
    return settled + _granted(asked[-1:], answer.claimed, at)


def _after_sweep(asked: list[HistoryEvent], answer: list[Reclaimed], at: int | None) -> list[HistoryEvent]:
    [sweep] = asked
    reply = [
        replace(
            sweep,
            kind="ok",
            op="reclaim",
            job=one.id,
            at=_first(at, one.at),
            version=one.version,
            result=one.result.value,
        )
        for one in answer
    ]
    return [*reply, replace(sweep, kind="ok", at=at, version=len(reply))]


def _after_cancel(asked: list[HistoryEvent], answer: Any, at: int | None) -> list[HistoryEvent]:
    return [
        replace(
            event,
            kind="ok",
            job=reply.id,
            result=reply.result.value,
            state=reply.state.value if reply.state else "",
            at=_first(at, reply.at),
            version=reply.version,
        )
        for event, reply in zip(asked, answer, strict=True)
    ]


def _after_requeue(asked: list[HistoryEvent], answer: Any, at: int | None) -> list[HistoryEvent]:
    return [
        replace(
            event,
            kind="ok",
            job=reply.id,
            at=_first(at, reply.at),
            version=reply.version,
            state=reply.state.value,
        )
        if isinstance(reply, Requeued)
        else _refused(event, reply, at)
        for event, reply in zip(asked, answer, strict=True)
    ]


def _after_delete(asked: list[HistoryEvent], answer: Any, at: int | None) -> list[HistoryEvent]:
    return [
        _refused(event, reply, at)
        if isinstance(reply, TaskHarborError)
        else replace(event, kind="ok", job=reply.id, at=_first(at, reply.at))
        for event, reply in zip(asked, answer, strict=True)
    ]


def _after_speculate(asked: list[HistoryEvent], answer: Any, at: int | None) -> list[HistoryEvent]:
    [event] = asked
    if not isinstance(answer, Speculated):
        return [_refused(event, answer, at)]
    return [
        replace(event, kind="ok", job=answer.copy_id, token=answer.id, at=_first(at, answer.at), version=1)
    ]


def _after_get(
    asked: list[HistoryEvent], answer: list[JobRecord | None], at: int | None
) -> list[HistoryEvent]:
    return [
        replace(event, kind="ok", at=at, result=event.job)
        if record is None
        else replace(
            event,
            kind="ok",
            job=record.id,
            result=event.job,  # the id that was asked for: for an alias the answer is the job itself
            at=at,
            version=record.version,
            state=record.state.value,
            worker=record.worker_id or "",
            until=_micros(record.lease_expires_at),
            facts=facts_of(record),
        )
        for event, record in zip(asked, answer, strict=True)
    ]


def snapshot(records: Sequence[JobRecord], at: int, call: int, t: int) -> list[HistoryEvent]:
    """A look at everything in the store, as the test itself takes it."""
    asked = [HistoryEvent(kind="invoke", op="look", job=record.id, call=call, t=t) for record in records]
    looks = _after_get(asked, list(records), at)
    return [*looks, HistoryEvent(kind="ok", op="snapshot", call=call, at=at, t=t, version=len(looks))]


_ANSWERS: dict[str, Callable[[list[HistoryEvent], Any, int | None], list[HistoryEvent]]] = {
    "enqueue": _after_enqueue,
    "enqueue_family": _after_enqueue,
    "note": _after_note,
    "resolve": _after_resolve,
    "reserve": _after_reserve,
    "extend_leases": _after_extend,
    "settle": _after_settle,
    "exchange": _after_exchange,
    "reclaim": _after_sweep,
    "cancel": _after_cancel,
    "cancel_waiting": lambda asked, answer, at: [replace(asked[0], kind="ok", at=at, version=int(answer))],
    "requeue": _after_requeue,
    "delete": _after_delete,
    "speculate": _after_speculate,
    "configure_queue": lambda asked, answer, at: [replace(asked[0], kind="ok", at=at, rules=answer)],
    "get": _after_get,
}


def _refused(event: HistoryEvent, error: BaseException, at: int | None) -> HistoryEvent:
    return replace(event, kind="fail", at=at, result=type(error).__name__)


def _first(at: int | None, reply: datetime | None) -> int | None:
    return at if at is not None else _micros(reply)


def _micros(at: datetime | None) -> int | None:
    return None if at is None else micros(at)
