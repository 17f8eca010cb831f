"""The verbs of a store with the capability `workflows`: as in `drivers/lifecycle.py`, for jobs of families.

A plain job takes the path of `lifecycle` unchanged. Every function leaves what follows from it to
`families.carry_out`, which the store calls behind the items of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from taskharbor.drivers import lifecycle
from taskharbor.drivers.families import (
    FamiliesInStep,
    carry_out,
    parent_record,
    release,
    stop,
    take_ends,
)
from taskharbor.drivers.messages import (
    CancelAnswer,
    CancelResult,
    Deleted,
    Noted,
    Reclaimed,
    Requeued,
    Resolution,
    Resolved,
    Settled,
    Speculated,
    reclaimed,
)
from taskharbor.errors import (
    BrokenBond,
    ConflictError,
    JobNotFound,
    LeaseLost,
    NotAllowedInState,
    ParkRefused,
    TaskHarborError,
)
from taskharbor.model.bonds import MAX_NOTE_BYTES, MAX_NOTES
from taskharbor.model.edit import Edit
from taskharbor.model.family_steps import (
    bonds_of,
    family_of,
    finished,
    is_late,
    is_plain,
    kept_error,
    may_be_seen_over,
    own_work_over,
    reopened,
    resolved,
    with_end,
    with_followers,
    with_notes,
    without_deadline,
)
from taskharbor.model.job import JobRecord, Note
from taskharbor.model.settlement import Park, Settlement
from taskharbor.model.speculation import HeadStart
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.model.transitions import held, requeued, settled, shown, stalled

# ------------------------------------------------------------------ attempts


def settle_one(jobs: FamiliesInStep, settlement: Settlement) -> Settled | LeaseLost:
    """End an attempt as its worker asks, if its lease still holds."""
    there = jobs.get(settlement.lease.job_id)
    if there is None or not (isinstance(settlement, Park) or _is_parent(there)):
        return lifecycle.settle_one(jobs, settlement)
    job = held(there, settlement.lease, jobs.now)
    if isinstance(job, LeaseLost):
        return job
    if isinstance(settlement, Park) and not job.cancel_requested:
        after = _park(jobs, job, settlement)
        if isinstance(after, LeaseLost):
            return after
    else:
        lifecycle.drop_copy(jobs, job)
        after = _own_end(jobs, job, settled(job, settlement, jobs.now))
    return Settled(after.id, after.state, jobs.now, after.version)


def reclaim_one(jobs: FamiliesInStep, job_id: str) -> Reclaimed | None:
    """End an expired lease; see `lifecycle.reclaim_one`."""
    job, now = jobs.get(job_id), jobs.now
    if job is None or not _is_parent(job):
        return lifecycle.reclaim_one(jobs, job_id)
    if job.lease_expires_at is None or job.lease_expires_at > now:
        return None
    after = stalled(job, "", now)
    if after.state in TERMINAL:
        lifecycle.drop_copy(jobs, job)
    # The answer names what became of the attempt, not of the family.
    answer = reclaimed(after, now, had_blocked=False)
    return replace(answer, version=_own_end(jobs, job, after).version)


def _is_parent(job: JobRecord) -> bool:
    """Whether the end of its own work is not all: it has children, or is being stopped for a reason."""
    return job.family is not None and bool(job.family.total or job.family.stopping)


def _own_end(jobs: FamiliesInStep, job: JobRecord, after: JobRecord) -> JobRecord:
    """Store what an attempt of a parent became: over, or waiting for its children or another try."""
    if after.state not in TERMINAL:
        jobs.put(after)
        return after
    after = own_work_over(job, after)
    return _wait_for_children(jobs, job, after)


def _wait_for_children(jobs: FamiliesInStep, job: JobRecord, after: JobRecord) -> JobRecord:
    """Store a job whose own work has just ended; end it if nothing is missing."""
    if may_be_seen_over(after):
        after = finished(after, jobs.now, is_part=True)
    jobs.put(after)
    if after.state in TERMINAL:
        lifecycle.end(jobs, after)
    elif family_of(after).stopping is not None:
        jobs.owe("stop", job.id)
    else:
        jobs.owe("events", job.id)
    return after


# ------------------------------------------------------------------ parking and notes


def _park(jobs: FamiliesInStep, job: JobRecord, park: Park) -> JobRecord | ParkRefused:
    children = [jobs.get(job_id) for job_id in dict.fromkeys(park.after)]
    own = [child for child in children if child is not None and bonds_of(child).parent == job.id]
    if len(own) != len(children):
        return ParkRefused(job.id, "cannot be parked for a job that is not its child")
    if (error := _notes_refused(job, park.notes)) is not None:
        return ParkRefused(job.id, error)
    after = with_notes(settled(job, park, jobs.now), park.notes, jobs.now)
    waits = [child for child in own if child.state not in TERMINAL]
    if waits:
        family = replace(family_of(after), waits_for=len(waits))
        after = replace(after, state=JobState.BLOCKED, family=family)
        jobs.add_edges(after, [child.id for child in waits], is_park=True)
        for child in waits:
            jobs.amend(with_followers(child, 1))
    lifecycle.drop_copy(jobs, job)
    jobs.put(after)
    return after


def note_one(jobs: FamiliesInStep, note: Note) -> Noted | LeaseLost | BrokenBond:
    """Keep what a step of a running job came to. A known name keeps what it has."""
    if note.lease is None:
        return BrokenBond("?", "has no lease to write a note under")
    job = held(jobs.get(note.lease.job_id), note.lease, jobs.now)
    if isinstance(job, LeaseLost):
        return job
    if (error := _notes_refused(job, [note])) is not None:
        return BrokenBond(job.id, error)
    after = with_notes(job, [note], jobs.now)
    if after is not job:
        after = replace(after, updated_at=jobs.now, version=job.version + 1)
        jobs.put(after)
    kept = next(one for one in after.notes if one.name == note.name)
    return Noted(job.id, kept.name, kept.data, kept.at or jobs.now, after.version)


def _notes_refused(job: JobRecord, new: Sequence[Note]) -> str | None:
    if job.key is not None:
        return "has a key: it keeps no notes and cannot be parked"
    known = {note.name: len(note.data) for note in job.notes}
    known |= {note.name: len(note.data) for note in new if note.name not in known}
    if len(known) > MAX_NOTES:
        return (
            f"has {MAX_NOTES:,} notes; give parts of the work to children (ctx.acall), which have their own"
        )
    size = sum(known.values())
    return None if size <= MAX_NOTE_BYTES else f"would have {size:,} bytes of notes; {MAX_NOTE_BYTES:,} fit"


def resolve_one(
    jobs: FamiliesInStep, item: Resolution, created: TaskHarborError | None
) -> Resolved | JobNotFound | ConflictError:
    """End the own work of a job that is done by a call. The first call wins; the same again is no error.

    `created`: why the job of `item.new` could not be stored, if it could not.
    """
    if isinstance(created, ConflictError):
        return created
    job, now = jobs.get(item.id), jobs.now
    if job is None:
        return JobNotFound(item.id)
    of_call = bonds_of(job).done_by == "call"
    if of_call and _is_repeat(job, item):
        return Resolved(job.id, job.state, now, job.version)
    is_open = job.state is JobState.BLOCKED and not family_of(job).is_done
    if not of_call or not is_open or is_late(job, now):
        return NotAllowedInState(job.id, verb="resolve", state=shown(job, now).state)
    after = _wait_for_children(jobs, job, resolved(job, item.result, item.error, now))
    return Resolved(after.id, after.state, now, after.version)


def _is_repeat(job: JobRecord, item: Resolution) -> bool:
    """Whether the job was resolved in just this way before: the reply may have been lost."""
    if item.error is None:
        return family_of(job).own == "completed" and job.result == item.result
    return family_of(job).own == "failed" and job.last_error == kept_error(item.error)


# ------------------------------------------------------------------ control


def cancel(jobs: FamiliesInStep, job_id: str) -> CancelAnswer:
    """Cancel a job and, with a parent, its family; a second cancel takes what the first one spared."""
    job, now = jobs.find(job_id), jobs.now
    if job is None or job.state in TERMINAL or not family_of(job).open:
        return lifecycle.cancel(jobs, job_id)
    family = family_of(job)
    if family.stopping != "cancel":
        stop(jobs, job, "cancel", spares=family.spares)
    elif family.spares:
        stop(jobs, job, "cancel", spares=False)
    carry_out(jobs)
    after = jobs.get(job.id) or job
    result = CancelResult.CANCELLED if after.state in TERMINAL else CancelResult.REQUESTED
    return CancelAnswer(job.id, result, after.state, now, after.version, take_ends(jobs))


def speculate(
    jobs: FamiliesInStep, job_id: str, head_start: HeadStart | None
) -> Speculated | JobNotFound | ConflictError:
    """Start a copy; not of a parent, whose children the copy would add again, or of a job with notes."""
    job = jobs.find(job_id)
    if job is not None and (_is_parent(job) or job.notes):
        return NotAllowedInState(job.id, verb="speculate", state=shown(job, jobs.now).state)
    return lifecycle.speculate(jobs, job_id, head_start)


def requeue(
    jobs: FamiliesInStep, job_id: str, edit: Edit, *, reset_counts: bool, run_at: datetime | None
) -> Requeued | JobNotFound | ConflictError:
    """Let a finished job run again. Its end is taken back: parents that were over are open again."""
    job, now = jobs.find(job_id), jobs.now
    if job is None or is_plain(job) or job.state not in TERMINAL:
        return lifecycle.requeue(jobs, job_id, edit, reset_counts=reset_counts, run_at=run_at)
    if bonds_of(job).done_by == "children":
        return NotAllowedInState(job.id, verb="requeue", state=job.state)
    if (error := _is_refused_above(jobs, job)) is not None:
        return error
    waits_for = len(bonds_of(job).after)  # at first for all: `release` reads them again
    after = requeued(job, edit, run_at, now, reset_counts=reset_counts)
    family = replace(family_of(job), is_done=False, own="", stopping=None, spares=True, waits_for=waits_for)
    is_blocked = bool(waits_for) or bonds_of(job).done_by == "call"
    after = replace(
        after,
        state=JobState.BLOCKED if is_blocked else after.state,
        bonds=without_deadline(job.bonds),
        family=family if job.family is not None or waits_for else None,
    )
    jobs.put(after)
    jobs.revive_keys(after)
    _take_end_back(jobs, job)
    if waits_for:
        release(jobs, after, is_parked=False)
    carry_out(jobs)
    after = jobs.get(job.id) or after
    return Requeued(after.id, after.state, now, after.version, take_ends(jobs))


def _is_refused_above(jobs: FamiliesInStep, job: JobRecord) -> BrokenBond | None:
    """Why its end cannot be taken back: the first parent that is not over is being stopped."""
    above = parent_record(jobs, job)
    while above is not None and above.state in TERMINAL:
        above = parent_record(jobs, above)
    if above is None or family_of(above).stopping is None:
        return None
    return BrokenBond(job.id, f"is of job {above.id}, which is being stopped: it cannot be retried now")


def _take_end_back(jobs: FamiliesInStep, job: JobRecord) -> None:
    """Count a job as open again, and open its parents up to the first that is not over."""
    parent = parent_record(jobs, job)
    while parent is not None:
        after = with_end(parent, job, by=-1)
        if parent.state not in TERMINAL:
            jobs.amend(after)
            return
        after = reopened(after, jobs.now)
        jobs.put(after)
        jobs.revive_keys(after)
        job, parent = parent, parent_record(jobs, parent)


def delete(jobs: FamiliesInStep, job_id: str) -> Deleted | JobNotFound | ConflictError:
    """Forget a finished job that nothing needs: no live parent, no children, no live job after it."""
    job = jobs.find(job_id)
    if job is None or is_plain(job) or job.state not in TERMINAL:
        return lifecycle.delete(jobs, job_id)
    parent = parent_record(jobs, job)
    if parent is not None and parent.state not in TERMINAL:
        return BrokenBond(job.id, f"is a child of job {parent.id}, which is not over")
    if jobs.has_children(job.id):
        return BrokenBond(job.id, "has children; delete them first")
    if is_named(jobs, job):
        return BrokenBond(job.id, "is named by a job that comes after it and is not over")
    return lifecycle.delete(jobs, job_id)


def is_named(jobs: FamiliesInStep, job: JobRecord) -> bool:
    """Whether a job that is not over comes after this one."""
    cursor = 0
    while family_of(job).followers and (page := jobs.dependents(job.id, cursor, 100)):
        if any(one.state not in TERMINAL for one in page):
            return True
        cursor = page[-1].seq
    return False
