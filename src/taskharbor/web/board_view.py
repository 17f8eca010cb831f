"""The board as one caller may see it: rows of queues, slots, what needs a person, the headline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from taskharbor.client.needs import (
    MOST,
    HarborNow,
    Headline,
    LostWorker,
    Need,
    QueueNow,
    Rates,
    needs,
    span_text,
    verdict,
)
from taskharbor.drivers.messages import Counts
from taskharbor.model.presence import WorkerInfo, takes_queue
from taskharbor.views import InstantText, QueueView, View, instant_text, queue_view
from taskharbor.web.auth import Principal
from taskharbor.web.board import Board, BoardLook
from taskharbor.web.queue_scope import visible_workers
from taskharbor.web.sentences import queues_sentence


class SlotsOut(View, frozen=True, kw_only=True):
    busy: int
    total: int


class BoardQueue(QueueView, frozen=True, kw_only=True):
    """A queue, with how fast it moves; null for what is not known."""

    throttled_until: InstantText | None
    arrived_per_s: float | None
    done_per_s: float | None
    failed_per_s: float | None
    wait_p95_s: float | None
    empty_in_s: float | None
    workers: int
    target_s: float


class BoardOut(View, frozen=True, kw_only=True):
    """The last look. `needs` has at most five entries; `more` counts the others."""

    at: InstantText
    age_s: float
    look_s: float
    is_away: bool
    counts: Counts
    slots: dict[str, SlotsOut]
    workers: int
    queues: list[BoardQueue]
    queues_text: str
    """Which queues fall behind, which are paused, and whether the rest keeps up."""
    verdict: Headline
    needs: list[Need]
    more: int


def board_view(board: Board, look: BoardLook, principal: Principal) -> BoardOut:
    now = harbor_now(board, look, principal)
    found = needs(now)
    rows = [queue_row(queue, now.workers, now.at) for queue in now.queues]
    return BoardOut(
        at=instant_text(look.at) or "",
        age_s=board.age_s(look),
        look_s=round(look.look_s, 6),
        is_away=now.away_since is not None,
        counts=total([queue.info.counts for queue in now.queues]),
        slots=slots_of(now.workers),
        workers=len(now.workers),
        queues=rows,
        queues_text=queues_sentence(rows, found),
        verdict=verdict(now, found),
        needs=found[:MOST],
        more=max(len(found) - MOST, 0),
    )


def board_delta(before: BoardOut, after: BoardOut) -> dict[str, Any]:
    """The parts of a board that changed. Of queues, only the rows that would look different on a page."""
    delta: dict[str, Any] = {"at": after.at, "age_s": after.age_s}
    for name in ("is_away", "counts", "slots", "workers", "queues_text", "verdict", "needs", "more"):
        if getattr(before, name) != getattr(after, name):
            delta[name] = getattr(after, name)
    rows = {row.name: row for row in before.queues}
    changed = [row for row in after.queues if row.name not in rows or _shown(rows[row.name]) != _shown(row)]
    gone = rows.keys() - {row.name for row in after.queues}
    return delta | ({"queues": changed} if changed else {}) | ({"gone": sorted(gone)} if gone else {})


def _shown(row: BoardQueue) -> tuple[BoardQueue, str]:
    """The row as it is read: ages grow all the time, and are shown in one unit."""
    age = "" if row.oldest_s is None else span_text(row.oldest_s)
    return replace(row, oldest_s=None), age


def harbor_now(board: Board, look: BoardLook, principal: Principal) -> HarborNow:
    """What the look says about the queues of the caller."""
    sees, is_limited = principal.may_use, principal.queues is not None
    return HarborNow(
        at=board.time_of(look),
        queues=[
            QueueNow(info=info, rates=look.rates.get(name, Rates()), target_s=board.target_s(name))
            for name, info in look.queues.items()
            if sees(name)
        ],
        harbor=look.harbor,
        workers=_workers(principal, look.workers),
        lost=visible_lost(principal, look.lost),
        schedules=[one for one in look.schedules if sees(one.schedule.template.queue)],
        wants=[want for want in look.wants if sees(want[0])],
        causes=[one for one in look.causes if not is_limited or (one.queue is not None and sees(one.queue))],
        slower={} if is_limited else look.slower,  # compared over jobs of every queue
        store_s=look.store_s,
        away_since=board.away_since,
    )


def queue_row(queue: QueueNow, workers: Sequence[WorkerInfo], now: datetime) -> BoardQueue:
    view, rates = queue_view(queue.info, now), queue.rates
    fields = {name: getattr(view, name) for name in QueueView.__struct_fields__}
    return BoardQueue(
        **fields,
        throttled_until=instant_text(queue.info.throttled_until),
        arrived_per_s=rates.arrived_per_s,
        done_per_s=rates.done_per_s,
        failed_per_s=rates.failed_per_s,
        wait_p95_s=rates.wait_p95_s,
        empty_in_s=_empty_in_s(queue),
        workers=sum(takes_queue(worker.report, view.name) for worker in workers),
        target_s=queue.target_s,
    )


def _empty_in_s(queue: QueueNow) -> float | None:
    """When the queue will be empty if nothing changes; None for never, or unknown."""
    ready, rates = queue.info.counts.ready, queue.rates
    if not ready:
        return 0.0
    if queue.info.rules.paused or rates.arrived_per_s is None or rates.done_per_s is None:
        return None
    faster = rates.done_per_s + (rates.failed_per_s or 0.0) - rates.arrived_per_s
    return round(ready / faster, 1) if faster > 0 else None


def slots_of(workers: Sequence[WorkerInfo]) -> dict[str, SlotsOut]:
    """Slots by kind of worker."""
    found: dict[str, SlotsOut] = {}
    for worker in workers:
        report = worker.report
        known = found.get(report.kind, SlotsOut(busy=0, total=0))
        found[report.kind] = SlotsOut(
            busy=known.busy + len(report.running), total=known.total + report.concurrency
        )
    return dict(sorted(found.items()))


def total(counts: Sequence[Counts]) -> Counts:
    names = Counts.__struct_fields__
    return Counts(**{name: sum(getattr(one, name) for one in counts) for name in names})


def visible_lost(principal: Principal, lost: Sequence[LostWorker]) -> list[LostWorker]:
    """Those that served a queue of the caller and none of others."""
    if principal.queues is None:
        return list(lost)
    return [one for one in lost if one.queues and all(map(principal.may_use, one.queues))]


def _workers(principal: Principal, workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """The visible ones, and without names those that serve every queue: they count as well."""
    found = visible_workers(principal, workers)
    if principal.queues is None:
        return found
    everywhere = [
        replace(one, report=replace(one.report, name="", running=(), host="", pid=0, labels={}))
        for one in workers
        if not one.report.queues
    ]
    return found + everywhere
