"""Every step a stored job can take, as a function from record to record.

Pure: a driver brings the record, the deciding clock's `now` and whatever else takes part, and stores what
comes back, in one atomic step. `drivers/lifecycle.py` calls these for every store; where SQL or Lua repeats
one for speed, a comment names it and the conformance kit compares. Each function makes exactly one new
version of each record it returns.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from taskharbor.errors import JobNotInflight, LeaseExpired, LeaseLost, LeaseMismatch
from taskharbor.model.clock import micros, utc
from taskharbor.model.edit import Edit
from taskharbor.model.entropy import derived_id
from taskharbor.model.job import (
    FAILURE_TYPE,
    NO_TIME,
    AttemptRecord,
    FailureKind,
    JobRecord,
    Lease,
    NewJob,
    Progress,
    RunAtRule,
    Update,
)
from taskharbor.model.settlement import (
    Ack,
    Cancelled,
    Fail,
    Park,
    Release,
    Retry,
    Settlement,
    Stalled,
    is_last_stall,
)
from taskharbor.model.speculation import HeadStart, avoided
from taskharbor.model.state import JobState
from taskharbor.model.text import ERROR_LIMIT, TRACE_LIMIT, safe_text

HISTORY_LENGTH = 10
CANCELLED_WAITING = "cancelled while it waited"
"""The reason that such a job keeps; one that ran keeps the reason its worker gave."""
UPDATE_ALL = Update()

# ------------------------------------------------------------------ in


def new_record(job: NewJob, seq: int, now: datetime, *, blocked: bool = False) -> JobRecord:
    """The record of a job that enters the store: ready, scheduled, or blocked behind its running key."""
    run_at = starting_at(job.run_at, job.delay, now)
    return JobRecord(
        id=job.id,
        seq=seq,
        type=job.type,
        queue=job.queue,
        state=JobState.BLOCKED if blocked else waiting_state(run_at, now),
        payload=job.payload,
        created_at=now,
        updated_at=now,
        key=job.key,
        idempotency_key=job.idempotency_key,
        headers=job.headers,
        priority=job.priority,
        requires=job.requires,
        run_at=run_at,
        timeout=job.timeout,
        max_attempts=job.max_attempts,
        max_stalls=job.max_stalls,
        min_backoff=job.min_backoff,
        max_backoff=job.max_backoff,
        update=(job.update or UPDATE_ALL) if blocked else None,
    )


def absorb(there: JobRecord, job: NewJob, now: datetime) -> JobRecord:
    """The waiting or blocked job of a key after an enqueue of the same key was applied to it."""
    update = job.update or UPDATE_ALL
    run_at = chosen_run_at(update.run_at, there.run_at, starting_at(job.run_at, job.delay, now), now)
    changes: dict[str, Any] = {"run_at": run_at, "version": there.version + 1, "updated_at": now}
    if update.data:
        changes |= {name: getattr(job, name) for name in _DATA}
    if update.retry:
        changes |= {name: getattr(job, name) for name in _RETRY}
    if update.resets_counts:
        changes |= {"attempts": 0, "stalls": 0}
    if there.state is JobState.BLOCKED:
        changes["update"] = joined_flags(there.update or UPDATE_ALL, update)
    else:
        changes["state"] = waiting_state(run_at, now)
    return replace(there, **changes)


def joined_flags(kept: Update, new: Update) -> Update:
    """The flags of two enqueues that met in one blocked job: booleans OR-ed, run_at the last."""
    return Update(
        data=kept.data or new.data,
        run_at=new.run_at,
        retry=kept.retry or new.retry,
        reset_counts=kept.resets_counts or new.resets_counts,
    )


# ------------------------------------------------------------------ attempts


def claimed(job: JobRecord, token: str, worker_id: str, expires_at: datetime, now: datetime) -> JobRecord:
    """The job under a fresh lease."""
    return replace(
        job,
        state=JobState.RUNNING,
        token=token,
        fence=max(job.fence + 1, micros(now)),
        lease_expires_at=expires_at,
        worker_id=worker_id,
        settled_token=None,
        starts=job.starts + 1,
        started_at=now,
        progress=None,
        updated_at=now,
        version=job.version + 1,
    )


def lease_error(job: JobRecord | None, lease: Lease, now: datetime) -> LeaseLost | None:
    """Why this lease may not write, in the order every driver keeps; None when it may."""
    if job is None or job.state is not JobState.RUNNING or job.lease_expires_at is None:
        return JobNotInflight(lease.job_id)
    if job.token != lease.token or lease.worker_id not in (None, job.worker_id):
        return LeaseMismatch(lease.job_id)
    if job.lease_expires_at <= now:
        return LeaseExpired(lease.job_id)
    return None


def held(job: JobRecord | None, lease: Lease, now: datetime) -> JobRecord | LeaseLost:
    """The job, if this lease may write to it; otherwise why not."""
    error = lease_error(job, lease, now)
    return job if job is not None and error is None else error or JobNotInflight(lease.job_id)


def extended(
    job: JobRecord, lease_for: timedelta, now: datetime, progress: Progress | None = None
) -> JobRecord:
    """The lease counted from `now` again: shorter or longer than it was."""
    return replace(
        job,
        lease_expires_at=now + lease_for,
        progress=progress or job.progress,
        updated_at=now,
        version=job.version + 1,
    )


def settled(job: JobRecord, settlement: Settlement, now: datetime) -> JobRecord:
    """The job after an attempt that its owner ended. A cancel request beats every settlement."""
    token = job.token
    if job.cancel_requested and not isinstance(settlement, Cancelled):
        error, error_class = _error_in(settlement), getattr(settlement, "error_class", None)
        return _ended(
            job, JobState.CANCELLED, "cancelled", error, now, settled_token=token, error_class=error_class
        )
    match settlement:
        case Ack(result=result):
            return _ended(job, JobState.COMPLETED, "completed", None, now, settled_token=token, result=result)
        case Retry():
            return _retried(job, settlement, now)
        case Fail(reason=reason, failure_kind=kind):
            return _ended(
                job,
                JobState.FAILED,
                "failed",
                _error_in(settlement),
                now,
                error_class=settlement.error_class,
                settled_token=token,
                attempts=job.attempts + 1,
                last_error=safe_text(reason, ERROR_LIMIT),
                failure_kind=kind,
                failed_at=now,
            )
        case Stalled(reason=reason):
            return stalled(job, reason, now, settled_token=token)
        case Cancelled(reason=reason):
            last_error = {"last_error": safe_text(reason, ERROR_LIMIT)} if reason else {}
            return _ended(
                job, JobState.CANCELLED, "cancelled", reason or None, now, settled_token=token, **last_error
            )
        case Release(delay=delay):
            run_at = job.run_at if delay is None else starting_at(None, delay, now)
            return _waits_again(job, "released", None, run_at, now, settled_token=token)
        case Park(delay=delay):
            return _parked(job, delay, now)
    assert_never(settlement)


def _parked(job: JobRecord, delay: timedelta | None, now: datetime) -> JobRecord:
    """A job that parked, as if all it waits for were over. It leaves no history; attempts start again."""
    run_at = job.run_at if delay is None else starting_at(None, delay, now)
    return replace(
        job,
        state=waiting_state(run_at, now),
        run_at=run_at,
        token=None,
        lease_expires_at=None,
        worker_id=None,
        settled_token=job.token,
        attempts=0,
        stalls=0,
        updated_at=now,
        version=job.version + 1,
    )


def stalled(job: JobRecord, reason: str, now: datetime, settled_token: str | None = None) -> JobRecord:
    """The job after its lease ran out or its process died: one stall more, attempts untouched."""
    why = reason or f"the lease of {job.worker_id} ran out: the worker fell silent"
    if job.cancel_requested:
        return _ended(job, JobState.CANCELLED, "cancelled", why, now, settled_token=settled_token)
    stalls = job.stalls + 1
    if is_last_stall(job):
        return _ended(
            job,
            JobState.FAILED,
            "stalled",
            why,
            now,
            settled_token=settled_token,
            stalls=stalls,
            last_error=safe_text(why, ERROR_LIMIT),
            failure_kind=FailureKind.STALLED,
            failed_at=now,
        )
    return _waits_again(job, "stalled", why, None, now, settled_token=settled_token, stalls=stalls)


def _retried(job: JobRecord, retry: Retry, now: datetime) -> JobRecord:
    return _waits_again(
        job,
        "retried",
        _error_in(retry),
        starting_at(retry.run_at, retry.delay, now),
        now,
        error_class=retry.error_class,
        settled_token=job.token,
        attempts=job.attempts + 1 if retry.attempts is None else retry.attempts,
        last_error=safe_text(retry.reason, ERROR_LIMIT),
        failure_kind=retry.failure_kind,
        failed_at=utc(retry.failed_at or now),
    )


# ------------------------------------------------------------------ keys


def merged(again: JobRecord, blocked: JobRecord, now: datetime) -> JobRecord:
    """One waiting job out of the one that runs again and the one blocked behind it.

    It keeps the id of the one that runs again; the blocked id becomes an alias of it.
    """
    flags = blocked.update or UPDATE_ALL
    run_at = chosen_run_at(flags.run_at, again.run_at, blocked.run_at, now)
    changes: dict[str, Any] = {"run_at": run_at, "state": waiting_state(run_at, now)}
    if flags.data:
        changes |= {name: getattr(blocked, name) for name in _DATA}
    if flags.retry:
        changes |= {name: getattr(blocked, name) for name in _RETRY}
    if flags.resets_counts:
        changes |= {"attempts": 0, "stalls": 0}
    return replace(again, **changes)


def unblocked(blocked: JobRecord, now: datetime) -> JobRecord:
    """The blocked job when the running one of its key has ended: with its own run_at and counts."""
    return replace(
        blocked,
        state=waiting_state(blocked.run_at, now),
        update=None,
        updated_at=now,
        version=blocked.version + 1,
    )


# ------------------------------------------------------------------ control


def cancelled(job: JobRecord, now: datetime) -> JobRecord:
    """A waiting or blocked job is over at once; a running one carries the request from now on."""
    if job.state is JobState.RUNNING:
        return replace(job, cancel_requested=True, updated_at=now, version=job.version + 1)
    return replace(
        job,
        state=JobState.CANCELLED,
        last_error=CANCELLED_WAITING,
        finished_at=now,
        update=None,
        updated_at=now,
        version=job.version + 1,
    )


def requeued(
    job: JobRecord,
    edit: Edit,
    run_at: datetime | None,
    now: datetime,
    *,
    reset_counts: bool,
    blocked: bool = False,
) -> JobRecord:
    """A finished job alive again: same id, rising fence, everything of its last end cleared."""
    again = {
        name: value for name in Edit.__struct_fields__ if (value := getattr(edit, name)) is not msgspec.UNSET
    }
    if reset_counts:
        again |= {"attempts": 0, "stalls": 0, "last_error": None, "failed_at": None, "failure_kind": None}
    due = run_at or now
    return replace(
        job,
        state=JobState.BLOCKED if blocked else waiting_state(due, now),
        run_at=due,
        settled_token=None,
        cancel_requested=False,
        result=None,
        progress=None,
        finished_at=None,
        update=UPDATE_ALL if blocked else None,
        updated_at=now,
        version=job.version + 1,
        **again,
    )


# ------------------------------------------------------------------ failure jobs and copies


def failure_job(job: JobRecord, fail_queue: str, now: datetime) -> NewJob:
    """The job that reports a failed job to a failure queue. The same failure makes the same id."""
    report = {
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
        "key": None if job.key is None else job.key.decode("utf-8", "backslashreplace"),
        "payload": base64.b64encode(job.payload).decode(),
        "error": job.last_error,
        "failure_kind": job.failure_kind,
        "attempts": job.attempts,
        "stalls": job.stalls,
    }
    return NewJob(
        id=derived_id(job.id, job.fence, "failed", now),
        type=FAILURE_TYPE,
        payload=msgspec.json.encode(report),
        queue=fail_queue,
        max_attempts=100,
        max_stalls=3,
        min_backoff=timedelta(seconds=10),
        max_backoff=timedelta(minutes=15),
    )


def speculative_copy(
    job: JobRecord, seq: int, now: datetime, head_start: HeadStart | None = None
) -> JobRecord:
    """A second run of a straggler, as a record of its own that the straggler's worker cannot claim."""
    return JobRecord(
        id=derived_id(job.id, job.fence, f"copy {seq}", now),
        seq=seq,
        type=job.type,
        queue=job.queue,
        state=JobState.READY,
        payload=job.payload,
        created_at=now,
        updated_at=now,
        headers=job.headers,
        priority=job.priority,
        requires=job.requires,
        # The place of its original in the queue, before all that was enqueued with that one: behind a
        # backlog it would come too late to help.
        run_at=min(job.eligible_at, now) - timedelta(microseconds=1),
        timeout=job.timeout,
        max_attempts=1,
        max_stalls=1,
        fence=job.fence,  # its first claim then lies above the original's, for the handler's own writes
        speculates_on=job.id,
        avoid=avoided(job.worker_id, head_start, now),
    )


def won(original: JobRecord, result: bytes | None, now: datetime) -> JobRecord:
    """The original, completed by its copy. Its own later settlement finds nothing in flight."""
    if original.state is JobState.RUNNING:
        return _ended(
            original,
            JobState.COMPLETED,
            "superseded",
            "its speculative copy finished first",
            now,
            result=result,
        )
    return replace(
        original,
        state=JobState.COMPLETED,
        result=result,
        finished_at=now,
        updated_at=now,
        version=original.version + 1,
    )


def dropped(copy: JobRecord, now: datetime) -> JobRecord:
    """A copy that is not needed any more, whatever it was doing."""
    return replace(
        copy,
        state=JobState.CANCELLED,
        token=None,
        lease_expires_at=None,
        worker_id=None,
        finished_at=now,
        updated_at=now,
        version=copy.version + 1,
    )


# ------------------------------------------------------------------ time


def starting_at(run_at: datetime | None, delay: timedelta | None, now: datetime) -> datetime | None:
    """The stored run_at of a request: `delay` counts from the deciding clock, nothing means now."""
    if run_at is not None:
        return run_at.astimezone(UTC)
    return now + delay if delay is not None and delay > NO_TIME else None


def shown(job: JobRecord, now: datetime) -> JobRecord:
    """The record as callers read it: a due job is ready, and the token stays secret."""
    state = job.state
    if state is JobState.SCHEDULED or state is JobState.READY:
        state = waiting_state(job.run_at, now)
    return job if state is job.state and job.token is None else replace(job, state=state, token=None)


def waiting_state(run_at: datetime | None, now: datetime) -> JobState:
    return JobState.SCHEDULED if run_at is not None and run_at > now else JobState.READY


def chosen_run_at(
    rule: RunAtRule, kept: datetime | None, new: datetime | None, now: datetime
) -> datetime | None:
    """Which of two run_at wins. An empty one compares as `now`, and stays empty when it wins."""
    if rule is True:
        return new
    if rule is False:
        return kept
    is_later = (new or now) > (kept or now)
    is_earlier = (new or now) < (kept or now)
    return new if (is_later if rule == "if_later" else is_earlier) else kept


# ------------------------------------------------------------------ the shared ends

_DATA = ("type", "payload", "headers", "timeout", "priority", "requires")
_RETRY = ("max_attempts", "max_stalls", "min_backoff", "max_backoff")


def _ended(
    job: JobRecord, state: JobState, outcome: str, error: str | None, now: datetime, **changes: Any
) -> JobRecord:
    return _left(job, state, outcome, error, now, finished_at=now, **changes)


def _waits_again(
    job: JobRecord, outcome: str, error: str | None, run_at: datetime | None, now: datetime, **changes: Any
) -> JobRecord:
    return _left(job, waiting_state(run_at, now), outcome, error, now, run_at=run_at, **changes)


def _left(
    job: JobRecord,
    state: JobState,
    outcome: str,
    error: str | None,
    now: datetime,
    *,
    error_class: str | None = None,
    **changes: Any,
) -> JobRecord:
    """A running job that leaves `running`: the lease goes, the history grows, the fence stays."""
    changes.setdefault("settled_token", None)
    return replace(
        job,
        state=state,
        token=None,
        lease_expires_at=None,
        worker_id=None,
        history=_history(job, outcome, error, error_class, now),
        updated_at=now,
        version=job.version + 1,
        **changes,
    )


def _history(
    job: JobRecord, outcome: str, error: str | None, error_class: str | None, now: datetime
) -> tuple[AttemptRecord, ...]:
    """The last ten attempts; a first-try success is not worth one."""
    if outcome == "completed" and job.starts == 1:
        return job.history
    entry = AttemptRecord(
        fence=job.fence,
        worker_id=job.worker_id or "",
        started_at=job.started_at or now,
        ended_at=now,
        outcome=outcome,
        error=None if error is None else safe_text(error, TRACE_LIMIT),
        error_class=None if error_class is None else safe_text(error_class, ERROR_LIMIT),
    )
    return (*job.history, entry)[-HISTORY_LENGTH:]


def _error_in(settlement: Settlement) -> str | None:
    """The error of a settlement, in its longest form."""
    return getattr(settlement, "trace", None) or getattr(settlement, "reason", None) or None
