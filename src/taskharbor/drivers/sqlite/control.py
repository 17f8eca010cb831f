"""Cancel, requeue, delete, speculate: what is done to jobs from outside."""

from __future__ import annotations

from datetime import datetime

from taskharbor.drivers.messages import CancelAnswer, CancelResult, Deleted, Requeued, Speculated
from taskharbor.drivers.sqlite.ends import Ends
from taskharbor.drivers.sqlite.records import Records
from taskharbor.drivers.sqlite.runs import lease_alone
from taskharbor.drivers.sqlite.step import Step
from taskharbor.errors import ConflictError, DuplicateJob, JobNotFound, NotAllowedInState
from taskharbor.model.edit import Edit
from taskharbor.model.job import JobRecord
from taskharbor.model.speculation import HeadStart
from taskharbor.model.state import JobState
from taskharbor.model.transitions import cancelled, requeued, speculative_copy


def cancel(step: Step, job_id: str) -> CancelAnswer:
    records = Records(step)
    job = records.find(job_id)
    if job is None:
        return CancelAnswer(job_id, CancelResult.NOT_FOUND, None, step.now, 0)
    if job.state.is_terminal:
        return CancelAnswer(job.id, CancelResult.ALREADY_OVER, job.state, step.now, job.version)
    return _cancel(step, records, job)


def cancel_waiting(step: Step, queue: str, key: bytes) -> bool:
    records = Records(step)
    slot = records.slot(queue, key)
    seq = slot.blocked if slot.waiting is None else slot.waiting
    if seq is not None:
        _cancel(step, records, records.by_seq(seq))
    return seq is not None


def _cancel(step: Step, records: Records, job: JobRecord) -> CancelAnswer:
    if job.state is JobState.RUNNING:
        return _request_cancel(step, records, job)
    after = cancelled(job, step.now)
    records.put(job, after)
    ends = Ends(step, records)
    ends.drop_copy_of(after)
    ends.end(after)
    return CancelAnswer(after.id, CancelResult.CANCELLED, after.state, step.now, after.version)


def _request_cancel(step: Step, records: Records, job: JobRecord) -> CancelAnswer:
    version = job.version
    if not job.cancel_requested:
        version = cancelled(job, step.now).version
        lease_alone(step, job.seq)
        step.run("cancel_request", seq=job.seq, now=step.us)
        Ends(step, records).drop_copy_of(job)
        if job.worker_id is not None:
            step.hints.cancels.append((job.worker_id, job.id))
    return CancelAnswer(job.id, CancelResult.REQUESTED, job.state, step.now, version)


def requeue(
    step: Step, job_id: str, edit: Edit, *, reset_counts: bool, run_at: datetime | None
) -> Requeued | JobNotFound | ConflictError:
    records = Records(step)
    job = records.find(job_id)
    if job is None or job.speculates_on is not None:
        return JobNotFound(job_id)
    if not job.state.is_terminal:
        return NotAllowedInState(job.id, verb="requeue", state=job.state)
    is_blocked = False
    if job.key is not None:
        slot = records.slot(job.queue, job.key)
        there = slot.blocked if slot.waiting is None else slot.waiting
        if there is not None:
            return DuplicateJob(job.id, records.by_seq(there).id)
        is_blocked = slot.running is not None
    after = requeued(job, edit, run_at, step.now, reset_counts=reset_counts, blocked=is_blocked)
    records.put(job, after)
    step.run("idempotency_lapsed", id=job.id, now=step.us)
    step.run("idempotency_lives", id=job.id)
    return Requeued(after.id, after.state, step.now, after.version)


def delete(step: Step, job_id: str) -> Deleted | JobNotFound | ConflictError:
    records = Records(step)
    job = records.find(job_id)
    if job is None or job.speculates_on is not None:
        return JobNotFound(job_id)
    if not job.state.is_terminal:
        return NotAllowedInState(job.id, verb="delete", state=job.state)
    records.drop(job)
    return Deleted(job.id, step.now)


def speculate(
    step: Step, job_id: str, head_start: HeadStart | None
) -> Speculated | JobNotFound | ConflictError:
    records = Records(step)
    job = records.find(job_id)
    if job is None:
        return JobNotFound(job_id)
    if not _may_have_copy(step, records, job) or not _mark(step, job):
        return NotAllowedInState(job_id, verb="speculate", state=job.state)
    copy = speculative_copy(job, step.take_seqs(1), step.now, head_start)
    records.add(copy)
    return Speculated(job.id, copy.id, step.now, copy.version)


def _mark(step: Step, job: JobRecord) -> bool:
    """The mark stays with the lease, so that no other leader makes this run a second copy."""
    lease_alone(step, job.seq)
    return bool(step.run("speculate_mark", seq=job.seq).rowcount)


def _may_have_copy(step: Step, records: Records, job: JobRecord) -> bool:
    return (
        job.state is JobState.RUNNING
        and job.lease_expires_at is not None
        and job.lease_expires_at > step.now
        and not job.cancel_requested
        and job.key is None
        and job.speculates_on is None
        and records.live_copy_of(job) is None
    )
