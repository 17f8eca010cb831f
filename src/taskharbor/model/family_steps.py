"""Every step that a job takes because of the jobs around it, as a function from record to record.

Pure, like `model/transitions.py`. Functions that only count make no new version: a count is no change of a
record that a reader waits for. All others make one, unless `is_part` says that they complete another step.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from msgspec.structs import replace

from taskharbor.model.bonds import (
    MAX_NAMED,
    NO_BONDS,
    NO_FAMILY,
    Bonds,
    Family,
    FamilyEnd,
    Stop,
    When,
    children_failed,
    fails_parent,
)
from taskharbor.model.clock import utc
from taskharbor.model.job import FailureKind, JobRecord, Note
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.model.text import ERROR_LIMIT, safe_text
from taskharbor.model.transitions import CANCELLED_WAITING, waiting_state

_OWN: dict[JobState, Literal["completed", "failed", "cancelled"]] = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
}
_REPORTED_STOPS = ("skipped", "deadline")
MISSED = "not over by its deadline"


def is_plain(job: JobRecord) -> bool:
    """Whether no other job depends on it and it depends on none."""
    return job.bonds is None and job.family is None


def family_of(job: JobRecord) -> Family:
    return job.family or NO_FAMILY


def bonds_of(job: JobRecord) -> Bonds:
    return job.bonds or NO_BONDS


def parent_of(job: JobRecord) -> str | None:
    return None if job.bonds is None else job.bonds.parent


def stored_bonds(bonds: Bonds, now: datetime) -> Bonds:
    """The bonds with the deadline as an instant of the deciding clock."""
    if bonds.within is not None:
        return replace(bonds, deadline=now + bonds.within, within=None)
    return bonds if bonds.deadline is None else replace(bonds, deadline=utc(bonds.deadline))


def is_late(job: JobRecord, now: datetime) -> bool:
    """Whether its deadline has passed."""
    at = None if job.bonds is None else job.bonds.deadline
    return at is not None and at <= now


# ------------------------------------------------------------------ after


def is_success(job: JobRecord) -> bool:
    """Whether a job ended well for those that come after it. The failure of an optional job is no failure."""
    return job.state is JobState.COMPLETED or (job.state is JobState.FAILED and bonds_of(job).optional)


def never_runs(when: When, over: Iterable[JobRecord], *, is_last: bool) -> str | None:
    """Why a job that comes after these, which are over, can never run; None while it can.

    `is_last`: nothing that it comes after is missing.
    """
    bad = next((job for job in over if not is_success(job)), None)
    if when == "success" and bad is not None:
        word = "was skipped" if bad.failure_kind == FailureKind.SKIPPED else str(bad.state)
        return f"skipped: {bad.type} {word}"
    if when == "failure" and is_last and bad is None:
        return "skipped: nothing failed"
    return None


def released(job: JobRecord, now: datetime) -> JobRecord:
    """What it waited for is over: a worker may have it, unless its work is done by others."""
    is_worked = bonds_of(job).done_by == "worker"
    return replace(
        job,
        state=waiting_state(job.run_at, now) if is_worked else JobState.BLOCKED,
        family=replace(family_of(job), waits_for=0),
        updated_at=now,
        version=job.version + 1,
    )


# ------------------------------------------------------------------ counting


def with_child(parent: JobRecord, children: int) -> JobRecord:
    """A parent with so many open children more."""
    family = family_of(parent)
    return replace(parent, family=replace(family, total=family.total + children, open=family.open + children))


def with_end(parent: JobRecord, child: JobRecord, *, by: int = 1) -> JobRecord:
    """A parent that has counted the end of a child; with `by=-1` that end is taken back."""
    family = family_of(parent)
    changes: dict[str, Any] = {"open": family.open - by}
    if child.state is JobState.CANCELLED:
        changes["cancelled"] = family.cancelled + by
    elif child.state is JobState.FAILED and bonds_of(child).optional:
        changes["excused"] = family.excused + by
    elif child.state is JobState.FAILED:
        changes["failed"] = family.failed + by
        named = tuple(one for one in family.failures if one != child.id)
        changes["failures"] = (*named, child.id)[:MAX_NAMED] if by > 0 else named
    return replace(parent, family=replace(family, **changes))


def is_failure(child: JobRecord) -> bool:
    """Whether its parent counts it as failed."""
    return child.state is JobState.FAILED and not bonds_of(child).optional


def with_followers(job: JobRecord, count: int) -> JobRecord:
    family = family_of(job)
    return replace(job, family=replace(family, followers=family.followers + count))


# ------------------------------------------------------------------ stopping and ending


def stopped(job: JobRecord, why: Stop, error: str | None, now: datetime, *, spares: bool = True) -> JobRecord:
    """A job that is not over, from now on without new work: a running one is asked to stop."""
    is_running = job.state is JobState.RUNNING
    family = replace(family_of(job), stopping=why, spares=spares)
    if not is_running:
        # It waits for nothing but its children from now on, also if one of them opens it again later.
        family = replace(family, is_done=True, own=family.own or "cancelled", waits_for=0)
    return replace(
        job,
        state=job.state if is_running else JobState.BLOCKED,
        cancel_requested=job.cancel_requested or is_running,
        last_error=error or job.last_error,
        family=family,
        updated_at=now,
        version=job.version + 1,
    )


def own_work_over(job: JobRecord, after: JobRecord) -> JobRecord:
    """A parent whose own attempt has just ended as in `after`; it waits for its children.

    Its own failure or cancellation stops them.
    """
    family = family_of(job)
    own = _OWN[after.state]
    why = family.stopping or {"failed": "failed", "cancelled": "cancel"}.get(own)
    return replace(
        after,
        state=JobState.BLOCKED,
        finished_at=None,
        family=replace(family, is_done=True, own=own, stopping=why),
    )


def kept_error(error: str) -> str:
    """The error of a call as it is stored."""
    return safe_text(error, ERROR_LIMIT)


def resolved(job: JobRecord, result: bytes | None, error: str | None, now: datetime) -> JobRecord:
    """The own work of a job that is done by a call, done: with a result, or with an error."""
    changes: dict[str, Any] = {"result": result}
    if error is not None:
        changes = {"last_error": kept_error(error), "failure_kind": FailureKind.ERROR, "failed_at": now}
    family = family_of(job)
    own = "completed" if error is None else "failed"
    why = family.stopping if error is None else "failed"
    return replace(
        job,
        family=replace(family, is_done=True, own=own, stopping=why),
        updated_at=now,
        version=job.version + 1,
        **changes,
    )


def finished(job: JobRecord, now: datetime, *, is_part: bool = False) -> JobRecord:
    """The verdict on a job whose own work and children are over."""
    return replace(
        job,
        finished_at=now,
        update=None,
        updated_at=now,
        version=job.version + (not is_part),
        **_verdict(job, family_of(job), now),
    )


def _verdict(job: JobRecord, family: Family, now: datetime) -> dict[str, Any]:
    match family.stopping:
        case "cancel":
            return {"state": JobState.CANCELLED, "last_error": job.last_error or CANCELLED_WAITING}
        case "stopped":
            return {"state": JobState.CANCELLED, "failure_kind": FailureKind.STOPPED}
        case "skipped":
            return {"state": JobState.CANCELLED, "failure_kind": FailureKind.SKIPPED}
        case "deadline":
            return _failure(FailureKind.TIMEOUT, MISSED, now)
    if family.own == "failed":
        return {"state": JobState.FAILED}
    if fails_parent(bonds_of(job), family):
        return _failure(FailureKind.CHILD_FAILED, children_failed(family), now)
    return {"state": JobState.CANCELLED if family.own == "cancelled" else JobState.COMPLETED}


def _failure(kind: str, error: str, now: datetime) -> dict[str, Any]:
    return {"state": JobState.FAILED, "failure_kind": kind, "last_error": error, "failed_at": now}


def reported_end(job: JobRecord) -> FamilyEnd | None:
    """The end of a job as answers have it; None where an attempt reports it, or its parent's counts do."""
    family = job.family
    if family is None or not (
        family.total or family.stopping in _REPORTED_STOPS or bonds_of(job).done_by == "children"
    ):
        return None
    return FamilyEnd(
        id=job.id,
        type=job.type,
        queue=job.queue,
        state=job.state,
        seconds=((job.finished_at or job.updated_at) - job.created_at).total_seconds(),
        counts=family,
        kind=job.failure_kind,
        parent=parent_of(job),
    )


def reopened(job: JobRecord, now: datetime) -> JobRecord:
    """A parent that was over and has an open child again. Its own work stays as it ended."""
    family = family_of(job)
    own = family.own or _OWN[job.state]  # it may have been cancelled while it waited
    family = replace(family, stopping=None, spares=True, is_done=True, own=own, waits_for=0)
    kept = {} if family.own == "failed" else {"last_error": None, "failure_kind": None, "failed_at": None}
    return replace(
        job,
        state=JobState.BLOCKED,
        finished_at=None,
        cancel_requested=False,
        bonds=without_deadline(job.bonds),
        family=family,
        updated_at=now,
        version=job.version + 1,
        **kept,
    )


def without_deadline(bonds: Bonds | None) -> Bonds | None:
    return bonds if bonds is None or bonds.deadline is None else replace(bonds, deadline=None)


def may_be_seen_over(job: JobRecord) -> bool:
    """Whether nothing keeps a job with bonds from being over."""
    family = family_of(job)
    return (
        job.state is JobState.BLOCKED
        and family.is_done
        and not family.open
        and (not family.waits_for or family.stopping is not None)
    )


# ------------------------------------------------------------------ parking and notes


def with_notes(job: JobRecord, notes: Iterable[Note], now: datetime) -> JobRecord:
    """The job with these notes, those with a known name left out. A new one is progress."""
    known = {note.name for note in job.notes}
    new = []
    for note in notes:
        if note.name not in known:
            known.add(note.name)
            new.append(Note(note.name, note.data, now))
    if not new:
        return job
    return replace(job, notes=(*job.notes, *new), attempts=0, stalls=0)


def over_among(jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """Those of them that are over."""
    return [job for job in jobs if job.state in TERMINAL]
