"""What needs a person now? Sentences worked out from one look at the store; pure, the worst first.

The order says what to repair first: a store that is away hides everything else, a pause explains a queue that
falls behind, a worker that is missing explains it as well. `verdict` is the headline over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, Protocol
from urllib.parse import quote

import msgspec

from taskharbor.drivers.messages import QueueInfo
from taskharbor.drivers.unclaimed import Want
from taskharbor.errors import InvalidArgument
from taskharbor.model.presence import WorkerInfo, takes_queue
from taskharbor.model.queue import NO_RULES, QueueRules
from taskharbor.model.schedule import StoredSchedule, is_undeclared, ticks

MOST = 5
PAUSED_FOR = timedelta(minutes=10)
UNSERVED_FOR = timedelta(seconds=30)
LATE_BY = timedelta(minutes=1)
SLOW_STORE_SECONDS = 2.0
SLOW = 1.5
"""From so many times as long on, a worker is called slow."""
NOTABLE_SHARE = 0.1
"""A queue grows when its oldest job has waited this share of the target; shorter waits come and go."""
_WORDS = {2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six", 7: "Seven", 8: "Eight", 9: "Nine", 10: "Ten"}

Level = Literal["good", "warn", "bad"]
Kind = Literal["store", "paused", "unserved", "behind", "cause", "lost", "schedule", "slow"]


class Action(msgspec.Struct, frozen=True):
    """A way to do something about it: words for a button, and the page it leads to."""

    label: str
    view: str


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that needs a person."""

    kind: Kind
    level: Level
    queue: str | None = None
    text: str
    detail: str
    actions: list[Action] = []


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a queue moves; None for what is not known."""

    arrived_per_s: float | None = None
    done_per_s: float | None = None
    failed_per_s: float | None = None
    wait_p95_s: float | None = None


class QueueNow(msgspec.Struct, frozen=True, kw_only=True):
    """One queue at the moment of the look."""

    info: QueueInfo
    rates: Rates = Rates()
    target_s: float = 60.0


class LostWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker whose report lapsed without a goodbye."""

    id: str
    name: str
    host: str
    queues: tuple[str, ...]
    seen_at: datetime
    running: tuple[str, ...]
    release: str = ""


class NewCause(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of failures that is new, and has made dead letters."""

    cause: str
    type: str
    title: str
    dead: int
    queue: str | None = None


class HarborNow(msgspec.Struct, frozen=True, kw_only=True):
    """What one look found."""

    at: datetime
    queues: Sequence[QueueNow] = ()
    harbor: QueueRules = NO_RULES
    workers: Sequence[WorkerInfo] = ()
    lost: Sequence[LostWorker] = ()
    schedules: Sequence[StoredSchedule] = ()
    wants: Sequence[Want] = ()
    """Queue, lane and type of ready jobs that no live worker takes."""
    causes: Sequence[NewCause] = ()
    slower: Mapping[str, float] = {}
    """Per worker: how many times as long its jobs take as on the others."""
    store_s: float | None = None
    """How long the store took to answer."""
    away_since: datetime | None = None
    """Since when the store has not answered."""


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The headline: a sentence, and what holds besides."""

    level: Level
    text: str
    detail: str


def needs(now: HarborNow) -> list[Need]:
    """Everything that needs a person, the first to look at first."""
    return [
        *_store(now),
        *_paused(now),
        *_unserved(now),
        *_behind(now),
        *_causes(now),
        *_lost(now),
        *_late_schedules(now),
        *_slow(now),
    ]


def verdict(now: HarborNow, found: Sequence[Need]) -> Headline:
    notes = _notes(now, found)
    calm = ", ".join([*notes, *_calm(now, found, has_notes=bool(notes))])
    if not found:
        text = "Nothing needs you yet" if notes else "All calm"
        return Headline(level="good", text=text, detail=f"{calm[:1].upper()}{calm[1:]}.")
    level: Level = "bad" if any(need.level == "bad" for need in found) else "warn"
    many = f"{_WORDS.get(len(found), f'{len(found):,}')} things need you"
    text = "One thing needs you" if len(found) == 1 else many
    return Headline(
        level=level, text=text, detail=f"{'Besides' if notes else 'Everything else is calm'}: {calm}."
    )


def _notes(now: HarborNow, found: Sequence[Need]) -> list[str]:
    """What is not calm, and needs nobody yet."""
    if now.away_since is not None:
        return []
    if now.harbor.paused:
        return [] if any(need.kind == "paused" for need in found) else ["the whole harbor is paused"]
    return [note for queue in _unnamed(now, found) if (note := _note(queue, now))]


def _note(queue: QueueNow, now: HarborNow) -> str:
    name, ready = queue.info.queue, queue.info.counts.ready
    if queue.info.rules.paused:
        return f"{name} is paused and {_count(ready, 'job waits', 'jobs wait')} in it" if ready else ""
    return f"{name} grows" if grows(ready, queue.rates, _oldest_s(queue, now), queue.target_s) else ""


def _unnamed(now: HarborNow, found: Sequence[Need]) -> list[QueueNow]:
    named = {need.queue for need in found if need.queue is not None}
    return [queue for queue in now.queues if queue.info.queue not in named]


def _calm(now: HarborNow, found: Sequence[Need], *, has_notes: bool) -> Iterator[str]:
    if now.away_since is not None:
        yield "nothing more is known"
        return
    fine = 0 if now.harbor.paused else sum(not _note(queue, now) for queue in _unnamed(now, found))
    if not now.queues:
        yield "there are no jobs yet"
    elif fine or not has_notes:
        yield f"{_count(fine, 'queue keeps', 'queues keep')} up"
    yield f"{_count(len(now.workers), 'worker is', 'workers are')} alive"
    if now.store_s is not None:
        yield f"the store answers {_within(now.store_s)}"


class Flow(Protocol):
    """What is known of how fast a queue moves."""

    @property
    def arrived_per_s(self) -> float | None: ...
    @property
    def done_per_s(self) -> float | None: ...
    @property
    def failed_per_s(self) -> float | None: ...


def grows(ready: int, rates: Flow, oldest_s: float | None, target_s: float) -> bool:
    """Whether more arrives than ends, and jobs already wait so long that it can be noticed."""
    if not ready or rates.arrived_per_s is None or rates.done_per_s is None:
        return False
    ended = rates.done_per_s + (rates.failed_per_s or 0.0)
    return rates.arrived_per_s > ended and (oldest_s is None or oldest_s >= NOTABLE_SHARE * target_s)


# ------------------------------------------------------------------ one function for each kind


def _store(now: HarborNow) -> Iterator[Need]:
    if now.away_since is not None:
        gone = span_text((now.at - now.away_since).total_seconds())
        yield Need(
            kind="store",
            level="bad",
            text="The store does not answer",
            detail=f"It has been away for {gone}. The figures below are from before.",
            actions=[Action("See the store", "#/system")],
        )
    elif now.store_s is not None and now.store_s > SLOW_STORE_SECONDS:
        yield Need(
            kind="store",
            level="warn",
            text="The store answers late",
            detail=f"Its last answer took {span_text(now.store_s)}.",
            actions=[Action("See the store", "#/system")],
        )


def _paused(now: HarborNow) -> Iterator[Need]:
    held = [queue for queue in now.queues if _oldest_s(queue, now) > PAUSED_FOR.total_seconds()]
    if now.harbor.paused:
        if held:
            ready = sum(queue.info.counts.ready for queue in held)
            oldest = max(_oldest_s(queue, now) for queue in held)
            yield Need(
                kind="paused",
                level="warn",
                text="The whole harbor is paused",
                detail=_ready_for(ready, oldest),
                actions=[Action("Resume…", "#/queues")],
            )
        return
    for queue in held:
        if queue.info.rules.paused:
            yield Need(
                kind="paused",
                level="warn",
                queue=queue.info.queue,
                text=f"{queue.info.queue} is paused",
                detail=_ready_for(queue.info.counts.ready, _oldest_s(queue, now)),
                actions=[_open_queue(queue.info.queue, "Resume…")],
            )


def _unserved(now: HarborNow) -> Iterator[Need]:
    waiting = [queue for queue in _moving(now) if _oldest_s(queue, now) >= UNSERVED_FOR.total_seconds()]
    if waiting and not now.workers:
        ready = sum(queue.info.counts.ready for queue in waiting)
        yield Need(
            kind="unserved",
            level="bad",
            queue=waiting[0].info.queue if len(waiting) == 1 else None,
            text="No worker is alive",
            detail=f"{_jobs(ready)} ready. Start one with `taskharbor worker module:harbor`.",
            actions=[Action("See workers", "#/workers")],
        )
        return
    for queue in waiting:
        name = queue.info.queue
        if not any(takes_queue(worker.report, name) for worker in now.workers):
            detail = f"{_jobs(queue.info.counts.ready)} ready, and no live worker serves this queue."
            yield _unserved_need(name, f"No worker takes jobs of {name}", detail + _silent(now, name))
        elif wants := [want for want in now.wants if want[0] == name]:
            yield _unserved_need(name, *_missing(wants, _silent(now, name)))


def _unserved_need(queue: str, text: str, detail: str) -> Need:
    actions = [Action("See workers", "#/workers"), _open_queue(queue)]
    return Need(kind="unserved", level="bad", queue=queue, text=text, detail=detail, actions=actions)


def _missing(wants: Sequence[Want], silent: str) -> tuple[str, str]:
    """Text and detail for jobs whose lane or type no worker of the queue takes."""
    queue, lane, type_name = wants[0]
    if lane != "any":
        return f"Jobs of {queue} wait for {lane}", f"No live worker of {queue} offers {lane}.{silent}"
    detail = f"No live worker of {queue} knows the task {type_name}.{silent}"
    return f"Jobs of {queue} wait for a worker", detail


def _behind(now: HarborNow) -> Iterator[Need]:
    for queue in _moving(now):
        rates, rules = queue.rates, queue.info.rules
        if rates.arrived_per_s is None or rates.done_per_s is None:
            continue
        is_growing = rates.arrived_per_s > rates.done_per_s
        if _oldest_s(queue, now) <= queue.target_s or not is_growing:
            continue
        is_full = rules.max_running is not None and queue.info.counts.running >= rules.max_running
        name = queue.info.queue
        raise_limit = Action("Raise limit…", f"#/queues/{quote(name)}?edit=max_running")
        yield Need(
            kind="behind",
            level="bad",
            queue=name,
            text=f"{name} falls behind",
            detail=(
                f"Its oldest job has waited {span_text(_oldest_s(queue, now))}, the target is "
                f"{span_text(queue.target_s)}. {_flow(rates)}{_reason(queue, is_full=is_full)}."
            ),
            actions=[*([raise_limit] if is_full else []), _open_queue(name)],
        )


def _reason(queue: QueueNow, *, is_full: bool) -> str:
    if is_full:
        return f": all {queue.info.rules.max_running:,} jobs that may run at once are running"
    return ": its execute rate holds it back" if queue.info.throttled_until is not None else ""


def _causes(now: HarborNow) -> Iterator[Need]:
    for cause in now.causes:
        yield Need(
            kind="cause",
            level="bad",
            queue=cause.queue,
            text=f"{cause.type} fails in a new way",
            detail=f"{_count(cause.dead, 'job is', 'jobs are')} dead: {cause.title}",
            actions=[Action("See cause", f"#/failures/{quote(cause.cause)}")],
        )


def _lost(now: HarborNow) -> Iterator[Need]:
    for worker in now.lost:
        if worker.running:
            silent = span_text((now.at - worker.seen_at).total_seconds())
            yield Need(
                kind="lost",
                level="warn",
                text=f"{worker.name or worker.id} is lost",
                detail=(f"It fell silent {silent} ago with {_run_again(len(worker.running))}"),
                actions=[Action("See workers", "#/workers")],
            )


def _late_schedules(now: HarborNow) -> Iterator[Need]:
    for entry in now.schedules:
        due = None if entry.paused or is_undeclared(entry, now.at) else _next_tick(entry)
        if due is not None and now.at - due > LATE_BY:
            name = entry.schedule.name
            late = span_text((now.at - due).total_seconds())
            yield Need(
                kind="schedule",
                level="warn",
                queue=entry.schedule.template.queue,
                text=f"{name} is late",
                detail=f"It should have fired {late} ago. Is a scheduler running?",
                actions=[Action("See schedule", f"#/schedules/{quote(name)}")],
            )


def _slow(now: HarborNow) -> Iterator[Need]:
    for worker in now.workers:
        worker_id, times = worker.report.worker_id, now.slower.get(worker.report.worker_id, 0.0)
        if times >= SLOW:
            yield Need(
                kind="slow",
                level="warn",
                text=f"{worker.report.name or worker_id} is slow",
                detail=f"Its jobs take {times:.1f} times as long as on the others.",
                actions=[Action("See worker", f"#/workers/{quote(worker_id)}")],
            )


def _next_tick(entry: StoredSchedule) -> datetime | None:
    """The first tick that was not dealt with."""
    try:
        return next(ticks(entry.schedule, entry.last_tick_at), None)
    except InvalidArgument:  # this machine does not know the zone
        return None


# ------------------------------------------------------------------ words


def _within(seconds: float) -> str:
    """A store in the same process answers before the clock moves."""
    return f"in {span_text(seconds)}" if seconds >= 0.00005 else "in under 1 ms"


def _run_again(jobs: int) -> str:
    if jobs == 1:
        return "1 job running; it runs again when its lease is over."
    return f"{jobs:,} jobs running; they run again when their leases are over."


def _moving(now: HarborNow) -> list[QueueNow]:
    """Queues that could give out a job."""
    if now.harbor.paused:
        return []
    return [queue for queue in now.queues if not queue.info.rules.paused and queue.info.counts.ready]


def _oldest_s(queue: QueueNow, now: HarborNow) -> float:
    oldest = queue.info.oldest_ready_at
    return 0.0 if oldest is None or not queue.info.counts.ready else (now.at - oldest).total_seconds()


def _silent(now: HarborNow, queue: str) -> str:
    for worker in now.lost:
        if not worker.queues or queue in worker.queues:
            silent = span_text((now.at - worker.seen_at).total_seconds())
            return f" {worker.name or worker.id} fell silent {silent} ago."
    return ""


def _flow(rates: Rates) -> str:
    arrived, done = rates.arrived_per_s or 0.0, rates.done_per_s or 0.0
    unit, factor = ("second", 1.0) if arrived >= 1 else ("minute", 60.0)
    return f"{_rate(arrived * factor)} arrive a {unit}, {_rate(done * factor)} are done"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _jobs(count: int) -> str:
    return _count(count, "job is", "jobs are")


def _ready_for(ready: int, oldest_s: float) -> str:
    return f"{_jobs(ready)} ready, the oldest for {span_text(oldest_s)}."


def _count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _open_queue(name: str, label: str = "Open queue") -> Action:
    return Action(label, f"#/queues/{quote(name)}")


_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def span_text(seconds: float) -> str:
    """One unit, as people say it: 0.9 ms, 8.1 s, 60 s, 14 min, 3 h, 2 d."""
    if seconds < 1:
        return f"{max(seconds, 0.0) * 1000:.2g} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
    for size, unit in _UNITS:
        if seconds >= (2 * size if unit == "min" else size):
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 and seconds != int(seconds) else f"{seconds:.0f} s"
