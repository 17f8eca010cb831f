"""Why is this job not running? One true reason, worked out from what the store knows.

`why` decides and is pure; `look_into` asks a store for what it needs. The order of the answers
follows the gates of a claim: its own time and key, pause, a worker that could take it, max_running,
free slots, rate, and at last its place in the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from taskharbor.client.family import Sees, sees_all
from taskharbor.client.why_family import (
    NO_RELATIVES,
    Relatives,
    family_cause,
    has_family_cause,
    look_at_relatives,
)
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query, QueueInfo
from taskharbor.errors import JobNotFound
from taskharbor.model.duration import shown
from taskharbor.model.job import JobRecord
from taskharbor.model.presence import WorkerInfo, lanes_of, serves, takes
from taskharbor.model.queue import EVERY_QUEUE, NO_RULES, QueueRules
from taskharbor.model.schedule import SCHEDULE_HEADER
from taskharbor.model.state import JobState

_LOOKED_AT = 200
"""Ready jobs of a queue that are looked at to count who is ahead: a page may have thousands of viewers."""


_START_WITH_CODE = (
    "start a worker that imports the module of this task: taskharbor worker APP --include MODULE"
)


class Reason(StrEnum):
    SCHEDULED = "scheduled"  # its time has not come
    KEY_HELD = "key_held"  # another job of its key runs
    AFTER = "after"  # jobs that it comes after are not over
    CHILDREN = "children"  # its children are not over
    EVENT = "event"  # an event has not come
    STOPPING = "stopping"  # its family is being stopped
    PAUSED = "paused"  # its queue, or the harbor
    NO_WORKER = "no_worker"  # no live worker takes its queue, lane or type
    FULL = "full"  # max_running of its queue, or of the harbor
    BUSY = "busy"  # every worker that could take it has its slots in use
    RATE = "rate"  # an execute rate holds it back
    IN_LINE = "in_line"  # others go first, or the next claim takes it
    RUNNING = "running"
    CANCELLING = "cancelling"  # runs, and was asked to stop
    LEASE_OVER = "lease_over"  # its worker fell silent; the next claim or sweep takes it back
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: a reason to program against, a sentence, and what else is worth knowing."""

    id: str
    type: str
    queue: str
    state: JobState
    reason: Reason
    text: str
    until: datetime | None = None
    facts: tuple[str, ...] = ()
    hint: str | None = None


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """A job, its queue and the workers at one instant."""

    job: JobRecord
    now: datetime
    queue: QueueInfo | None = None
    harbor: QueueRules = NO_RULES
    harbor_running: int = 0
    harbor_throttled_until: datetime | None = None
    workers: Sequence[WorkerInfo] = ()
    key_holder: JobRecord | None = None
    ahead: int = 0
    ahead_is_exact: bool = True
    relatives: Relatives = NO_RELATIVES


async def look_into(
    driver: Driver,
    job_id: str,
    *,
    now: datetime | None = None,
    known: Sequence[QueueInfo] = (),
    sees: Sees = sees_all,
) -> Why:
    """Ask the store about a job and its surroundings, and say why it is where it is.

    `known` are its queues as they were a moment ago: counting is dear where many jobs are. The store is asked
    when the job's queue is not among them. `sees` says which relatives of the job the caller may know.

    Raises:
        JobNotFound: there is no such job.
    """
    at = now or (await driver.info()).at
    [job] = await driver.get([job_id], payloads=False, now=now)
    if job is None:
        raise JobNotFound(job_id)
    if not job.state.is_waiting:
        return why(Situation(job=job, now=at))
    if has_family_cause(job):
        relatives = await look_at_relatives(driver, job, now, known, sees)
        return why(Situation(job=job, now=at, relatives=relatives))
    is_known = any(info.queue == job.queue for info in known)
    queues = {info.queue: info for info in (known if is_known else await driver.queues(now=now))}
    harbor = queues.pop(EVERY_QUEUE, None)
    ahead, is_exact = await _ahead(driver, job, now)
    return why(
        Situation(
            job=job,
            now=at,
            queue=queues.get(job.queue),
            harbor=NO_RULES if harbor is None else harbor.rules,
            harbor_running=sum(info.counts.running for info in queues.values()),
            harbor_throttled_until=None if harbor is None else harbor.throttled_until,
            workers=await driver.workers(now=now),
            key_holder=await _key_holder(driver, job, now),
            ahead=ahead,
            ahead_is_exact=is_exact,
        )
    )


async def _key_holder(driver: Driver, job: JobRecord, now: datetime | None) -> JobRecord | None:
    if job.key is None or job.state is not JobState.BLOCKED:
        return None
    query = Query(queue=job.queue, key=job.key, states=(JobState.RUNNING,), limit=1, payloads=False)
    while True:
        page = await driver.find(query, now=now)
        if page.jobs or page.next_cursor is None:
            return page.jobs[0] if page.jobs else None
        query = msgspec.structs.replace(query, cursor=page.next_cursor)


async def _ahead(driver: Driver, job: JobRecord, now: datetime | None) -> tuple[int, bool]:
    """How many ready jobs of the same queue and lane a claim prefers; counted up to a bound."""
    if job.state is not JobState.READY:
        return 0, True
    query = Query(queue=job.queue, states=(JobState.READY,), limit=_LOOKED_AT, payloads=False)
    page = await driver.find(query, now=now)
    return sum(_goes_before(other, job) for other in page.jobs), page.next_cursor is None


def _goes_before(other: JobRecord, job: JobRecord) -> bool:
    return other.requires == job.requires and _place(other) < _place(job)


def _place(job: JobRecord) -> tuple[int, datetime, int]:
    return -job.priority, job.eligible_at, job.seq


# ------------------------------------------------------------------ the decision


def why(at: Situation) -> Why:
    """The one reason that holds, by the state of the job."""
    match at.job.state:
        case JobState.RUNNING:
            return _running(at)
        case JobState.COMPLETED:
            return _completed(at)
        case JobState.FAILED:
            return _failed(at)
        case JobState.CANCELLED:
            error = f": {at.job.last_error}" if at.job.last_error else ""
            return _answer(at, Reason.CANCELLED, f"was cancelled {_ago(at, at.job.finished_at)}{error}")
        case JobState.BLOCKED:
            return _blocked(at)
        case JobState.SCHEDULED:
            return _scheduled(at)
        case JobState.READY:
            return _ready(at)


def _completed(at: Situation) -> Why:
    job = at.job
    text = f"completed {_ago(at, job.finished_at)}"
    last = job.history[-1] if job.history else None
    if last is None or last.outcome != "superseded":
        return _answer(at, Reason.COMPLETED, text)
    fact = (
        f"its run by {last.worker_id} took so long that a second one was started, and that one finished first"
    )
    return _answer(at, Reason.COMPLETED, text, facts=(fact,))


def _running(at: Situation) -> Why:
    job = at.job
    if job.lease_expires_at is not None and job.lease_expires_at <= at.now:
        text = f"{job.worker_id} fell silent: its lease ran out {_ago(at, job.lease_expires_at)}"
        hint = "the next claim of its queue, or the scheduler's sweep, gives it to another worker"
        return _answer(at, Reason.LEASE_OVER, text, hint=hint)
    since = f"runs under {job.worker_id}, started {_ago(at, job.started_at)}"
    progress = job.progress
    facts = () if progress is None else (f"says it is {progress.fraction:.0%} done {progress.text}".rstrip(),)
    if job.cancel_requested:
        return _answer(at, Reason.CANCELLING, f"was asked to stop; it {since}", facts=facts)
    return _answer(at, Reason.RUNNING, since, until=job.lease_expires_at, facts=facts)


def _failed(at: Situation) -> Why:
    job = at.job
    match job.failure_kind:
        case "stalled":
            how = f"its worker fell silent or died {_times(job.stalls)}"
        case "error" | "timeout":
            again = " since it was retried" if _was_retried(job) else ""
            many = f"all {job.attempts} attempts{again} are used up"
            how = many if job.attempts > 1 else f"its attempt{again} failed"
        case "no_handler":
            how = "the worker had no handler for its type"
        case "invalid_payload":
            how = "its payload does not fit its handler"
        case "child_failed":
            text = f"failed {_ago(at, job.failed_at)}: {job.last_error or 'a child of it failed'}"
            hint = f"go on from what failed: taskharbor workflows retry {job.id}"
            return _answer(at, Reason.FAILED, text, hint=hint)
        case _:
            how = "its handler raised Unrecoverable: no retry"
    text = f"failed {_ago(at, job.failed_at)}: {how}"
    facts = (f"last error: {job.last_error}",) if job.last_error else ()
    return _answer(at, Reason.FAILED, text, facts=facts, hint=f"try it again: taskharbor jobs retry {job.id}")


def _blocked(at: Situation) -> Why:
    if has_family_cause(at.job):
        cause = family_cause(at.job, at.relatives, at.now)
        return _answer(at, Reason(cause.reason), cause.text, until=cause.until, hint=cause.hint)
    holder = at.key_holder
    if holder is None:
        return _answer(at, Reason.KEY_HELD, "waited for another job of its key, which has just ended")
    text = f"waits for job {holder.id} of the same key, which runs under {holder.worker_id}"
    return _answer(at, Reason.KEY_HELD, text, facts=_notices(at))


def _scheduled(at: Situation) -> Why:
    job = at.job
    due = job.run_at or at.now
    text = f"is scheduled: due in {_span(due - at.now)}"
    facts, hint = _notices(at), None
    if job.attempts and job.last_error:
        facts = (f"attempt {job.attempts} failed: {job.last_error}", *facts)
    if unable := [worker.report.worker_id for worker in at.workers if job.type in worker.report.unresolved]:
        facts = (f"released by {unable[0]}: it has no handler for {job.type}", *facts)
        hint = _START_WITH_CODE
    return _answer(at, Reason.SCHEDULED, text, until=due, facts=facts, hint=hint)


def _ready(at: Situation) -> Why:
    return _paused(at) or _unclaimed(at) or _throttled(at) or _full(at) or _busy(at) or _in_line(at)


def _paused(at: Situation) -> Why | None:
    if at.harbor.paused:
        hint = "resume it: taskharbor queues resume --all"
        return _answer(at, Reason.PAUSED, "is ready, but the whole harbor is paused", hint=hint)
    if _rules(at).paused:
        hint = f"resume it: taskharbor queues resume {at.job.queue}"
        return _answer(at, Reason.PAUSED, f"is ready, but queue {at.job.queue} is paused", hint=hint)
    return None


def _unclaimed(at: Situation) -> Why | None:
    """No live worker takes it: because of its queue, else of its lane, else of its type."""
    job = at.job
    if any(_takes(worker, job) for worker in at.workers):
        return None
    if any(_serves(worker, job) for worker in at.workers):
        text = (
            "is ready, but every worker that could take it claims nothing more: it is quiet, or about to end"
        )
        return _answer(at, Reason.NO_WORKER, text, facts=_line(at), hint=_start_one(job))
    reports = [worker.report for worker in at.workers]
    of_queue = [report for report in reports if not report.queues or job.queue in report.queues]
    of_lane = [report for report in of_queue if job.requires in lanes_of(report)]
    hint = _start_one(job)
    if not at.workers:
        text = "is ready, but no worker is alive"
    elif not of_queue:
        text = f"is ready, but no live worker takes queue {job.queue}"
    elif not of_lane:
        text = f"is ready, but needs {job.requires}, and no live worker of queue {job.queue} offers it"
    else:
        text = f"is ready, but no live worker of queue {job.queue} knows the task {job.type}"
        hint = _START_WITH_CODE
    return _answer(at, Reason.NO_WORKER, text, facts=_line(at), hint=hint)


def _start_one(job: JobRecord) -> str:
    kind = "" if job.requires == "any" else f" --kind {job.requires}"
    return f"start one: taskharbor worker APP -q {job.queue}{kind}"


def _full(at: Situation) -> Why | None:
    running = 0 if at.queue is None else at.queue.counts.running
    for name, limit, now in (
        (f"queue {at.job.queue}", _rules(at).max_running, running),
        ("the harbor", at.harbor.max_running, at.harbor_running),
    ):
        if limit is not None and now >= limit:
            text = f"is ready, but {name} is full: {now} of at most {limit} run"
            return _answer(at, Reason.FULL, text, facts=_line(at))
    return None


def _throttled(at: Situation) -> Why | None:
    queue_until = None if at.queue is None else at.queue.throttled_until
    for name, rate, until in (
        (f"queue {at.job.queue}", _rules(at).execute_rate, queue_until),
        ("the harbor", at.harbor.execute_rate, at.harbor_throttled_until),
    ):
        if rate is not None and until is not None:
            text = (
                f"is ready, but {name} starts at most {_at_most(rate.count)} per {shown(rate.per)}: "
                f"the budget is back in {_span(until - at.now)}"
            )
            return _answer(at, Reason.RATE, text, until=until, facts=_line(at))
    return None


def _busy(at: Situation) -> Why | None:
    """Somebody could take it: are all of them busy?"""
    able = [worker for worker in at.workers if _takes(worker, at.job)]
    if not all(_is_busy(worker) for worker in able):
        return None
    slots = sum(worker.report.concurrency for worker in able)
    if slots == 1:
        text = "is ready; the one slot of the only worker that could take it is in use"
    elif len(able) == 1:
        text = f"is ready; all {slots} slots of the only worker that could take it are in use"
    else:
        text = f"is ready; all {slots} slots of the {len(able)} workers that could take it are in use"
    return _answer(at, Reason.BUSY, text, facts=_line(at))


def _in_line(at: Situation) -> Why:
    if at.ahead == 0 and at.ahead_is_exact:
        return _answer(at, Reason.IN_LINE, "is ready and first in line: the next claim takes it")
    return _answer(at, Reason.IN_LINE, f"is ready; {_ahead_text(at)}")


def _answer(
    at: Situation,
    reason: Reason,
    text: str,
    *,
    until: datetime | None = None,
    facts: tuple[str, ...] = (),
    hint: str | None = None,
) -> Why:
    job = at.job
    return Why(
        id=job.id,
        type=job.type,
        queue=job.queue,
        state=job.state,
        reason=reason,
        text=text,
        until=until,
        facts=(*facts, *_origin(job)),
        hint=hint,
    )


def _origin(job: JobRecord) -> tuple[str, ...]:
    """Where a job came from, if no program enqueued it."""
    if job.speculates_on is not None:
        return (f"it is the second run of job {job.speculates_on}",)
    name = job.headers.get(SCHEDULE_HEADER)
    return () if name is None else (f"schedule {name} made it",)


# ------------------------------------------------------------------ words


def _rules(at: Situation) -> QueueRules:
    return NO_RULES if at.queue is None else at.queue.rules


def _notices(at: Situation) -> tuple[str, ...]:
    """What will hold it back once its own time has come."""
    if at.harbor.paused:
        return ("the whole harbor is paused",)
    return (f"queue {at.job.queue} is paused",) if _rules(at).paused else ()


def _line(at: Situation) -> tuple[str, ...]:
    return ("it is first in line",) if at.ahead == 0 and at.ahead_is_exact else (_ahead_text(at),)


def _ahead_text(at: Situation) -> str:
    if at.ahead == 0:
        return "none of the oldest jobs of its queue is ahead of it"
    return f"{'' if at.ahead_is_exact else 'at least '}{_jobs(at.ahead)} ahead of it"


def _takes(worker: WorkerInfo, job: JobRecord) -> bool:
    return takes(worker.report, queue=job.queue, lane=job.requires, type_name=job.type)


def _serves(worker: WorkerInfo, job: JobRecord) -> bool:
    return serves(worker.report, queue=job.queue, lane=job.requires, type_name=job.type)


def _is_busy(worker: WorkerInfo) -> bool:
    return 0 < worker.report.concurrency <= len(worker.report.running)


def _jobs(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"


def _at_most(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _was_retried(job: JobRecord) -> bool:
    """Whether attempts failed before somebody retried the job: a retry counts from the beginning."""
    return sum(attempt.outcome in ("retried", "failed") for attempt in job.history) > job.attempts


def _ago(at: Situation, then: datetime | None) -> str:
    return "at an unknown time" if then is None else f"{_span(at.now - then)} ago"


def _span(span: timedelta) -> str:
    """Rounded to seconds."""
    whole = timedelta(seconds=round(max(span, timedelta(0)).total_seconds()))
    return shown(whole)
