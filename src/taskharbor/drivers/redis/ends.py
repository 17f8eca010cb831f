"""What the end of a job, or of an attempt, does to everybody else: steps inside a ledger."""

from __future__ import annotations

from taskharbor.drivers.messages import CancelAnswer, CancelResult, Reclaimed, Settled, reclaimed
from taskharbor.drivers.redis.unit_of_work import UnitOfWork
from taskharbor.errors import LeaseLost
from taskharbor.model.job import FAILURE_TYPE, NO_TIME, JobRecord
from taskharbor.model.queue import EVERY_QUEUE, fail_queue_of, retention_of
from taskharbor.model.settlement import Ack, Settlement
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.model.transitions import (
    cancelled,
    dropped,
    failure_job,
    held,
    merged,
    settled,
    stalled,
    unblocked,
    won,
)


def settle(unit: UnitOfWork, settlement: Settlement) -> Settled | LeaseLost:
    lease, now = settlement.lease, unit.now
    job = held(unit.get(lease.job_id), lease, now)
    if isinstance(job, LeaseLost):
        return job
    after = settled(job, settlement, now)
    if after.state is JobState.COMPLETED and job.speculates_on is not None and isinstance(settlement, Ack):
        _win(unit, job.speculates_on, settlement.result)
    drop_copy_of(unit, job)  # first: without retention, the job that leads to it is gone afterwards
    after = leave(unit, job, after)
    return Settled(after.id, after.state, now, after.version)


def reclaim(unit: UnitOfWork, job_id: str) -> Reclaimed | None:
    """End an expired lease; None when somebody else has already done so."""
    job, now = unit.get(job_id), unit.now
    if job is None or job.lease_expires_at is None or job.lease_expires_at > now:
        return None
    had_blocked = unit.blocked_behind(job) is not None
    after = stalled(job, "", now)
    if after.state.is_terminal:
        drop_copy_of(unit, job)
    after = leave(unit, job, after)
    return reclaimed(after, now, had_blocked=had_blocked)


def leave(unit: UnitOfWork, before: JobRecord, after: JobRecord) -> JobRecord:
    """Store a job that left `running`, with everything that follows from it in the same step."""
    now = unit.now
    blocked = unit.blocked_behind(before)
    if blocked is not None and not after.state.is_terminal:
        after = merged(after, blocked, now)
        keys = unit.keys_of(blocked.id)
        unit.merge_away(blocked, after.id)
        unit.move_keys(keys, after.id)
    unit.put(after)
    if after.state.is_terminal:
        if blocked is not None:
            unit.put(unblocked(blocked, now))
        end(unit, after)
    return after


def end(unit: UnitOfWork, job: JobRecord) -> None:
    """What the end of a stored job sets off: its failure job, its idempotency window, its retention."""
    own, harbor = unit.rules(job.queue), unit.rules(EVERY_QUEUE)
    if job.state is JobState.FAILED and job.type != FAILURE_TYPE and job.speculates_on is None:
        fail_queue = fail_queue_of(own, harbor)
        if fail_queue is not None:
            unit.post(failure_job(job, fail_queue, unit.now))
    unit.end_keys(job.id)
    if retention_of(own, harbor).of(job.state) == NO_TIME:
        unit.drop(job)


def drop_copy_of(unit: UnitOfWork, job: JobRecord) -> None:
    copy = unit.copy_of(job)
    if copy is not None:
        unit.put(dropped(copy, unit.now))
        unit.tell_of_cancel(copy)


def cancel(unit: UnitOfWork, job_id: str) -> CancelAnswer:
    job, now = unit.find(job_id), unit.now
    if job is None:
        return CancelAnswer(job_id, CancelResult.NOT_FOUND, None, now, 0)
    if job.state in TERMINAL:
        return CancelAnswer(job.id, CancelResult.ALREADY_OVER, job.state, now, job.version)
    is_running = job.state is JobState.RUNNING
    result = CancelResult.REQUESTED if is_running else CancelResult.CANCELLED
    if job.cancel_requested:
        return CancelAnswer(job.id, result, job.state, now, job.version)
    after = cancelled(job, now)
    unit.put(after)
    drop_copy_of(unit, after)
    if is_running:
        unit.tell_of_cancel(job)
    else:
        end(unit, after)
    return CancelAnswer(after.id, result, after.state, now, after.version)


def _win(unit: UnitOfWork, original_id: str, result: bytes | None) -> None:
    original = unit.get(original_id)
    if original is not None and not original.state.is_terminal:
        after = won(original, result, unit.now)
        unit.put(after)
        unit.tell_of_cancel(original)
        end(unit, after)
