"""What pages say first about their subject, in a sentence or two: pure, from what the answer has anyway.

The sentences of the overview are in `client/needs.py`. Names between backticks are set apart from the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from taskharbor.client.needs import SLOW, grows, span_text
from taskharbor.model.job import FailureKind

if TYPE_CHECKING:
    from taskharbor.client.family import Stopping
    from taskharbor.client.needs import Need
    from taskharbor.web.api.answers import FailureOut, LostOut, SkippedOut, WorkerOut
    from taskharbor.web.board_view import BoardQueue

MOST_NAMED = 3


class Counted(Protocol):
    """So many; at least so many, if it is not exact."""

    @property
    def count(self) -> int: ...
    @property
    def exact(self) -> bool: ...


def counted(count: int, one: str, many: str | None = None) -> str:
    """3 jobs, 1 job."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def _named(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


# ------------------------------------------------------------------ queues


def queues_sentence(queues: Sequence[BoardQueue], needs: Iterable[Need]) -> str:
    """Which fall behind, which grow, which are paused, and whether the rest keeps up."""
    troubled = {need.queue for need in needs if need.kind in ("behind", "unserved")}
    paused = [queue.name for queue in queues if queue.paused]
    behind = [one.name for one in queues if not one.paused and (_is_late(one) or one.name in troubled)]
    growing = [one.name for one in queues if not one.paused and one.name not in behind and _grows(one)]
    good = len(queues) - len(behind) - len(growing) - len(paused)
    return _joined(
        f"{_named(behind)} {'falls' if len(behind) == 1 else 'fall'} behind." if behind else "",
        f"{_named(growing)} {'grows' if len(growing) == 1 else 'grow'}." if growing else "",
        f"{_named(paused)} {'is' if len(paused) == 1 else 'are'} paused." if paused else "",
        _keeps_up(good, is_all=good == len(queues)) if good else "",
    )


def _keeps_up(good: int, *, is_all: bool) -> str:
    if is_all:
        return "It keeps up." if good == 1 else f"All {good:,} keep up."
    return "The other one keeps up." if good == 1 else f"The other {good:,} keep up."


def _is_late(queue: BoardQueue) -> bool:
    return queue.oldest_s is not None and queue.oldest_s > queue.target_s


def _grows(queue: BoardQueue) -> bool:
    return grows(queue.ready, queue, queue.oldest_s, queue.target_s)


def queue_sentence(queue: BoardQueue) -> str:
    """Does it keep up?"""
    waits = counted(queue.ready, "job waits", "jobs wait") if queue.ready else "No job waits"
    if queue.paused:
        return f"{waits}, and none starts before the queue is resumed."
    oldest = (
        f", the oldest for {span_text(queue.oldest_s)}" if queue.ready and queue.oldest_s is not None else ""
    )
    target = f"; the target is {span_text(queue.target_s)}" if _is_late(queue) else ""
    begun = f"{waits}{oldest}{target}."
    if queue.workers == 0:
        return f"{begun} No live worker takes jobs of this queue."
    if queue.arrived_per_s is None or queue.done_per_s is None:
        return begun
    return f"{begun} {_flow(queue)}: {_outlook(queue)}."


def _flow(queue: BoardQueue) -> str:
    fail = f", {_rate(queue.failed_per_s)} fail" if queue.failed_per_s else ""
    return f"{_rate(queue.arrived_per_s)} arrive a second, {_rate(queue.done_per_s)} are done{fail}"


def _outlook(queue: BoardQueue) -> str:
    if _grows(queue):
        is_full = queue.max_running is not None and queue.running >= queue.max_running
        words = "it falls behind" if queue.oldest_s is None or _is_late(queue) else "it grows"
        return words + (", and all that may run at once are running" if is_full else "")
    if queue.ready and queue.empty_in_s is not None and queue.empty_in_s > 1:
        return f"empty in {span_text(queue.empty_in_s)}"
    return "it keeps up"


def _rate(value: float | None) -> str:
    """Three digits: 0.28, 41.0, 803."""
    size = abs(value or 0.0)
    return f"{value or 0.0:,.{0 if size >= 100 else 1 if size >= 9.995 or size == 0 else 2}f}"


# ------------------------------------------------------------------ failures

_PLACES = {
    FailureKind.ERROR: "no traceback",
    FailureKind.TIMEOUT: "it ran longer than its timeout",
    FailureKind.STALLED: "lease ran out without a heartbeat",
    FailureKind.NO_HANDLER: "no worker knows this task",
    FailureKind.INVALID_PAYLOAD: "its arguments do not fit the task",
}


def place_of_failure(frame: str | None, kind: str) -> str:
    """Where it failed, or how."""
    return frame or next((text for known, text in _PLACES.items() if known == kind), kind)


def failures_sentence(causes: Iterable[FailureOut], window: str) -> str:
    """How much failed, for how many causes, and whether any of them is new."""
    seen = [cause for cause in causes if cause.status == "open"]
    if not seen:
        return f"Nothing failed in {window}."
    attempts = counted(sum(cause.attempts for cause in seen), "attempt")
    many = "one cause" if len(seen) == 1 else f"{len(seen):,} causes"
    new = [cause for cause in seen if cause.is_new]
    releases = sorted({cause.began_with for cause in new if cause.began_with})
    since = f" since release `{releases[0]}`" if len(releases) == 1 else ""
    return f"{attempts} failed in {window}, for {many}. {_how_many_are(len(new), len(seen))} new{since}."


def _how_many_are(some: int, of: int) -> str:
    if of == 1:
        return "It is" if some else "It is not"
    if some in (0, of):
        return "All of them are" if some else "None of them is"
    return counted(some, "of them is", "of them are")


def began_sentence(release: str, since_s: float, last_s: float, days: int, *, is_new: bool) -> str:
    """Since when a cause is known; what comes before the first comma is the point of it."""
    if not is_new:
        return f"Known for {span_text(since_s)}, last {span_text(last_s)} ago."
    begun = f"Began with release `{release}`," if release else "New, first seen"
    return f"{begun} {span_text(since_s)} ago. In the {days} days before: none."


def outlook_sentence(
    attempts: int, window: str, dead: Counted, retrying: Counted, next_s: float | None
) -> str:
    """What becomes of the jobs of a cause: how many try again by themselves, and how many are dead."""
    return _joined(
        f"{counted(attempts, 'attempt')} failed in {window}.",
        f"{_try_again(retrying, next_s)}." if retrying.count else "",
        _used_up(dead),
    )


def _used_up(dead: Counted) -> str:
    if not dead.count:
        return "None of its jobs is dead." if dead.exact else ""
    whose = "its" if dead.count == 1 else "their"
    return f"{_so_many(dead, 'job has', 'jobs have')} used up {whose} attempts."


def _try_again(retrying: Counted, next_s: float | None) -> str:
    many = _so_many(retrying, "of its jobs tries", "of its jobs try")
    by_itself = "itself" if retrying.count == 1 else "themselves"
    when = "" if next_s is None else f", the next {f'in {span_text(next_s)}' if next_s >= 1 else 'one now'}"
    return f"{many} again by {by_itself}{when}"


def _so_many(many: Counted, one: str, more: str) -> str:
    return f"{many.count:,}{'' if many.exact else '+'} {one if many.count == 1 else more}"


# ------------------------------------------------------------------ workers


def workers_sentence(workers: Sequence[WorkerOut], lost: Sequence[LostOut]) -> str:
    """How many are alive, how busy they are, and which one is slow."""
    gone = f"{'One was' if len(lost) == 1 else f'{len(lost):,} were'} lost." if lost else ""
    if not workers:
        return _joined("Nobody is alive." if lost else "", gone)
    hosts = len({worker.host for worker in workers})
    busy, slots = sum(len(worker.running) for worker in workers), sum(one.concurrency for one in workers)
    where = "one host" if hosts == 1 else f"{hosts:,} hosts"
    alive = f"{len(workers):,} alive on {where}, {busy:,} of {counted(slots, 'slot')} busy."
    return _joined(alive, _slowest(workers), gone, _behind_release(workers))


def _slowest(workers: Sequence[WorkerOut]) -> str:
    worst = max(workers, key=lambda worker: worker.times_slower or 0.0)
    if worst.times_slower is None or worst.times_slower < SLOW:
        return ""
    times = f"{worst.times_slower:.1f}"
    return f"`{worst.name or worst.id}` is slow: its jobs take {times} times as long as on the others."


def _behind_release(workers: Sequence[WorkerOut]) -> str:
    """The most frequent release that is not the one that started last."""
    known = [worker for worker in workers if worker.release]
    newest = max(known, key=lambda worker: worker.started_at or "", default=None)
    others = Counter(one.release for one in known if newest is not None and one.release != newest.release)
    if not others:
        return ""
    [(release, count)] = others.most_common(1)
    return f"{counted(count, 'still runs', 'still run')} release `{release}`."


def machine_text(workers: Sequence[WorkerOut]) -> str | None:
    """The machine of workers on one host: 16 cores, load 11.2 · 41 of 64 GiB · store 0.9 ms."""
    machine = next((worker.machine for worker in workers if worker.machine is not None), None)
    if machine is None:
        return None
    gpus = sum(len(worker.gpus) for worker in workers)
    load = "" if machine.load is None else f"load {machine.load:.1f}"
    cores = "" if machine.cores is None else counted(machine.cores, "core")
    memory = "" if machine.memory is None else _memory(machine.memory_used, machine.memory)
    store = "" if machine.store_s is None else f"store {span_text(machine.store_s)}"
    first = ", ".join(part for part in (cores, counted(gpus, "GPU") if gpus else load) if part)
    return " · ".join(part for part in (first, memory, store) if part)


def _memory(used: int | None, whole: int) -> str:
    size, unit = 1024.0, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if whole >= size * 1024:
            size, unit = size * 1024, larger
    return "" if used is None else f"{used / size:.3g} of {whole / size:.3g} {unit}"


# ------------------------------------------------------------------ changes

_DID = {
    "configure_queue": "set",
    "pause_queue": "paused queue",
    "resume_queue": "resumed queue",
    "retry": "retried",
    "cancel": "cancelled",
    "delete_dead": "deleted",
    "retry_dead": "retried dead letters",
    "bulk_ended": "ended",
    "stop_bulk": "stopped",
    "start_bulk": "began at once",
    "mute_cause": "muted",
    "snooze_cause": "snoozed",
    "open_cause": "opened again",
    "create_token": "made a token",
    "revoke_token": "revoked a token",
    "pause_schedule": "paused schedule",
    "resume_schedule": "resumed schedule",
    "run_schedule": "ran schedule",
    "put_schedule": "stored schedule",
    "delete_schedule": "deleted schedule",
}


def deed(operation: str, details: Mapping[str, Any]) -> str:
    """What somebody did, before the name of what it was done to."""
    if operation == "bulk":
        many = counted(details.get("jobs") or 0, "job")
        return f"asked to {details.get('action') or 'change'} {many}"
    return _DID.get(operation, operation.replace("_", " "))


def skipped_sentence(skipped: Sequence[SkippedOut]) -> str:
    """What a bulk action leaves alone."""
    total = sum(one.count for one in skipped)
    reasons = [f"{one.count:,}: {one.why}" if len(skipped) > 1 else one.why for one in skipped]
    stay = counted(total, "more matches and stays as it is", "more match and stay as they are")
    return f"{stay}: {'; '.join(reasons)}." if total else ""


def stopping_sentence(stopping: Stopping) -> str:
    """What the cancel of a workflow does."""
    waiting, running, below = stopping.waiting, stopping.running, stopping.below
    parts = (
        counted(waiting, "waiting job does not run.", "waiting jobs do not run.") if waiting else "",
        counted(running, "running job is asked to stop.", "running jobs are asked to stop.")
        if running
        else "",
        counted(below, "job further down is stopped, too.", "jobs further down are stopped, too.")
        if below
        else "",
        f"Still to run: {', '.join(stopping.spared)}; a second cancel takes these, too."
        if stopping.spared
        else "",
    )
    return _joined(*parts) or "Nothing of it is open but itself."
