"""The verbs that change jobs from outside: cancel, requeue, delete, speculate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from taskharbor.drivers.messages import CancelAnswer, Deleted, Requeued, Speculated
from taskharbor.drivers.redis import ends
from taskharbor.drivers.redis.encoding import shown
from taskharbor.drivers.redis.optimistic import OptimisticStep
from taskharbor.drivers.redis.snapshot import ask_for_job, scoped
from taskharbor.drivers.redis.unit_of_work import UnitOfWork
from taskharbor.errors import ConflictError, DuplicateJob, JobNotFound, NotAllowedInState
from taskharbor.model.edit import Edit
from taskharbor.model.job import JobRecord
from taskharbor.model.speculation import HeadStart
from taskharbor.model.state import TERMINAL, JobState
from taskharbor.model.transitions import requeued, speculative_copy, starting_at


class Control:
    """The control verbs of one driver handle."""

    def __init__(self, steps: OptimisticStep) -> None:
        self._steps = steps

    async def cancel(self, ids: Sequence[str], now: datetime | None) -> list[CancelAnswer]:
        def decide(unit: UnitOfWork) -> list[CancelAnswer]:
            return [ends.cancel(unit, job_id) for job_id in ids]

        return await self._steps.run(_asked(ids), decide, now)

    async def cancel_waiting(self, queue: str, key: bytes, now: datetime | None) -> bool:
        def decide(unit: UnitOfWork) -> bool:
            slot = unit.slot(queue, key)
            waiting = slot.get("w") or slot.get("b")
            if waiting is not None:
                ends.cancel(unit, waiting)
            return waiting is not None

        return await self._steps.run([b"k" + scoped(queue, key)], decide, now)

    async def requeue(
        self,
        ids: Sequence[str],
        edit: Edit,
        reset_counts: bool,
        run_at: datetime | None,
        delay: timedelta | None,
        now: datetime | None,
    ) -> list[Requeued | JobNotFound | ConflictError]:
        def decide(unit: UnitOfWork) -> list[Requeued | JobNotFound | ConflictError]:
            due = starting_at(run_at, delay, unit.now)
            return [_requeue(unit, job_id, edit, reset_counts, due) for job_id in ids]

        return await self._steps.run(_asked(ids), decide, now)

    async def delete(
        self, ids: Sequence[str], now: datetime | None
    ) -> list[Deleted | JobNotFound | ConflictError]:
        def decide(unit: UnitOfWork) -> list[Deleted | JobNotFound | ConflictError]:
            return [_delete(unit, job_id) for job_id in ids]

        return await self._steps.run(_asked(ids), decide, now)

    async def speculate(
        self, job_id: str, head_start: HeadStart | None, now: datetime | None
    ) -> Speculated | JobNotFound | ConflictError:
        return await self._steps.run(
            _asked([job_id]), lambda unit: _speculate(unit, job_id, head_start), now, seqs=1
        )


def _asked(ids: Sequence[str]) -> list[bytes]:
    return list(dict.fromkeys(map(ask_for_job, ids)))


def _requeue(
    unit: UnitOfWork, job_id: str, edit: Edit, reset_counts: bool, run_at: datetime | None
) -> Requeued | JobNotFound | ConflictError:
    job, now = unit.find(job_id), unit.now
    if job is None or job.speculates_on is not None:
        return JobNotFound(job_id)
    if job.state not in TERMINAL:
        return NotAllowedInState(job.id, verb="requeue", state=shown(job, now).state)
    slot = {} if job.key is None else unit.slot(job.queue, job.key)
    if (there := slot.get("w") or slot.get("b")) is not None:
        return DuplicateJob(job.id, there)
    after = requeued(job, edit, run_at, now, reset_counts=reset_counts, blocked="r" in slot)
    unit.put(after)
    unit.revive_keys(job.id)
    return Requeued(after.id, after.state, now, after.version)


def _delete(unit: UnitOfWork, job_id: str) -> Deleted | JobNotFound | ConflictError:
    job, now = unit.find(job_id), unit.now
    if job is None or job.speculates_on is not None:
        return JobNotFound(job_id)
    if job.state not in TERMINAL:
        return NotAllowedInState(job.id, verb="delete", state=shown(job, now).state)
    unit.drop(job)
    return Deleted(job.id, now)


def _speculate(
    unit: UnitOfWork, job_id: str, head_start: HeadStart | None
) -> Speculated | JobNotFound | ConflictError:
    job, now = unit.find(job_id), unit.now
    if job is None:
        return JobNotFound(job_id)
    if not _may_have_copy(unit, job):
        return NotAllowedInState(job_id, verb="speculate", state=shown(job, now).state)
    copy = speculative_copy(job, unit.next_seq(), now, head_start)
    unit.put(copy)
    return Speculated(job.id, copy.id, now, copy.version)


def _may_have_copy(unit: UnitOfWork, job: JobRecord) -> bool:
    return (
        job.state is JobState.RUNNING
        and job.lease_expires_at is not None
        and job.lease_expires_at > unit.now
        and not job.cancel_requested
        and job.key is None
        and job.speculates_on is None
        and unit.copy_of(job) is None
        and not unit.run_had_copy(job)
    )
