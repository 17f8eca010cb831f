"""Histories written by hand: short words for events, with one job `a` in queue `q` by default."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any

from msgspec.structs import replace

from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import QueueRules
from taskharbor.testing.history import Facts, HistoryEvent

LEASE = 30
_calls = count(1)


def facts(**fields: Any) -> Facts:
    return Facts(
        **{"type": "work", "queue": "q", "digest": "d", "max_attempts": 3, "max_stalls": 3, **fields}
    )


def enqueue(
    job="a", at=0, *, result="created", version=1, sent="", kind="ok", **fields
) -> list[HistoryEvent]:
    call = next(_calls)
    asked = HistoryEvent(kind="invoke", op="enqueue", job=sent or job, t=at, call=call, facts=facts(**fields))
    if kind != "ok":
        return [asked, replace(asked, kind=kind, facts=None, result="RateLimited")]
    return [asked, replace(asked, kind="ok", job=job, token=sent, at=at, version=version, result=result)]


def reserve(at, *granted: HistoryEvent, limit=1, worker="w", **asked) -> list[HistoryEvent]:
    """A claim and what it brought."""
    call = next(_calls)
    claim = HistoryEvent(
        kind="invoke",
        op="reserve",
        worker=worker,
        process=worker,
        t=at,
        call=call,
        limit=limit,
        span=LEASE,
        **{"queues": ("q",), "lanes": ("any",), **asked},
    )
    events = [replace(event, call=call, process=worker) for event in granted]
    return [claim, *events, replace(claim, kind="ok", at=at, version=len(events))]


def grant(
    job="a", at=10, *, version=2, token="t1", fence=None, until=None, worker="w", **fields
) -> HistoryEvent:
    return HistoryEvent(
        kind="ok",
        op="grant",
        process=worker,
        worker=worker,
        job=job,
        t=at,
        at=at,
        version=version,
        token=token,
        queue=fields.get("queue", "q"),
        until=at + LEASE if until is None else until,
        span=LEASE if until is None else None,
        facts=facts(**{"starts": 1, "fence": at if fence is None else fence, **fields}),
    )


def extend(at, *, job="a", version=3, token="t1", until=None) -> HistoryEvent:
    until = at + LEASE if until is None else until
    return HistoryEvent(
        kind="ok", op="extend", job=job, t=at, at=at, version=version, token=token, until=until, span=LEASE
    )


_STATE = {"ack": "completed", "retry": "ready", "fail": "failed", "release": "ready", "stalled": "ready"}


def end(
    op, at=20, *, job="a", version=3, token="t1", state="", kind="ok", span=None, result=""
) -> HistoryEvent:
    state = state or _STATE.get(op, "cancelled")
    return HistoryEvent(
        kind=kind,
        op=op,
        job=job,
        t=at,
        at=at,
        version=version,
        token=token,
        state=state if kind == "ok" else "",
        span=span,
        result=result,
    )


def refuse(op, at, error, *, job="a", token="t1") -> HistoryEvent:
    return HistoryEvent(kind="fail", op=op, job=job, t=at, at=at, token=token, result=error)


def reclaim(at=40, *, job="a", version=3, result="requeued") -> HistoryEvent:
    return HistoryEvent(kind="ok", op="reclaim", job=job, t=at, at=at, version=version, result=result)


def sweep(at, found=0, limit=100) -> HistoryEvent:
    return HistoryEvent(kind="ok", op="sweep", t=at, at=at, version=found, limit=limit)


def cancel(at, result="cancelled", *, job="a", version=2, state="") -> HistoryEvent:
    return HistoryEvent(
        kind="ok",
        op="cancel",
        job=job,
        t=at,
        at=at,
        version=version,
        result=result,
        state=state or "cancelled",
    )


def requeue(at, *, job="a", version=4, resets=True) -> HistoryEvent:
    return HistoryEvent(
        kind="ok", op="requeue", job=job, t=at, at=at, version=version, state="ready", resets=resets
    )


def delete(at, *, job="a") -> HistoryEvent:
    return HistoryEvent(kind="ok", op="delete", job=job, t=at, at=at)


def look(at, state, *, job="a", version=3, until=None, call=0, **fields) -> HistoryEvent:
    return HistoryEvent(
        kind="ok",
        op="look",
        job=job,
        t=at,
        at=at,
        version=version,
        state=state,
        until=until,
        call=call,
        facts=facts(**{"starts": 1, "failure_kind": "error" if state == "failed" else "", **fields})
        if state
        else None,
    )


def snapshot(at, *looks: HistoryEvent) -> list[HistoryEvent]:
    call = -next(_calls)
    return [
        *(replace(one, call=call) for one in looks),
        HistoryEvent(kind="ok", op="snapshot", call=call, at=at),
    ]


def configure(at=0, queue="q", **rules) -> HistoryEvent:
    return HistoryEvent(kind="ok", op="configure", queue=queue, t=at, at=at, rules=QueueRules(**rules))


def run(at, fence, kind="ok", *, job="a") -> list[HistoryEvent]:
    begun = HistoryEvent(kind="invoke", op="run", job=job, t=at, version=fence)
    return [begun, replace(begun, kind=kind, t=at + 1)]


def fault(at, process="w") -> HistoryEvent:
    return HistoryEvent(kind="ok", op="fault", process=process, t=at)


def speculate(at, *, copy="c", original="a") -> HistoryEvent:
    return HistoryEvent(kind="ok", op="speculate", job=copy, token=original, t=at, at=at, version=1)


def history_of(*parts: HistoryEvent | list[HistoryEvent]) -> list[HistoryEvent]:
    events: list[HistoryEvent] = []
    for part in parts:
        events += part if isinstance(part, list) else [part]
    return events


def per(count: int, us: int) -> RateLimit:
    return RateLimit(count, timedelta(microseconds=us))
