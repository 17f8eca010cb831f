"""What follows when a job stops running, or stops for good: keys, copies, failure jobs, retention."""

from __future__ import annotations

from taskharbor.drivers.messages import Settled
from taskharbor.drivers.sqlite import gates
from taskharbor.drivers.sqlite.records import Records
from taskharbor.drivers.sqlite.step import Step
from taskharbor.errors import LeaseLost
from taskharbor.model.clock import micros
from taskharbor.model.job import FAILURE_TYPE, NO_TIME, JobRecord
from taskharbor.model.queue import IDEMPOTENCY_WINDOW
from taskharbor.model.settlement import Ack, Settlement
from taskharbor.model.state import JobState
from taskharbor.model.transitions import (
    dropped,
    failure_job,
    held,
    merged,
    new_record,
    settled,
    unblocked,
    won,
)


class Ends:
    """The ends of jobs, within one step."""

    __slots__ = ("_records", "_step")

    def __init__(self, step: Step, records: Records) -> None:
        self._step = step
        self._records = records

    def settle(self, settlement: Settlement) -> Settled | LeaseLost:
        """One settlement with everything that follows from it."""
        now = self._step.now
        job = held(self._records.by_id(settlement.lease.job_id), settlement.lease, now)
        if isinstance(job, LeaseLost):
            return job
        after = settled(job, settlement, now)
        if (
            after.state is JobState.COMPLETED
            and job.speculates_on is not None
            and isinstance(settlement, Ack)
        ):
            self._win(job.speculates_on, settlement.result)
        after = self.leave(job, after)
        self.drop_copy_of(after)
        return Settled(after.id, after.state, now, after.version)

    def leave(self, before: JobRecord, after: JobRecord) -> JobRecord:
        """Store a job that left `running`. Its key goes on: the blocked job is released or merged into it."""
        step, records = self._step, self._records
        blocked = records.blocked_behind(before)
        if blocked is not None and not after.state.is_terminal:
            after = merged(after, blocked, step.now)
            records.merge_away(blocked, after)
            step.run("idempotency_move", before=blocked.id, after=after.id)
        records.put(before, after)
        if after.state.is_terminal:
            if blocked is not None:
                records.put(blocked, unblocked(blocked, step.now))
            self.end(after)
        return after

    def end(self, job: JobRecord) -> None:
        """What the end of a stored job sets off: its failure job, its idempotency window, its retention."""
        step = self._step
        if job.state is JobState.FAILED and job.type != FAILURE_TYPE and job.speculates_on is None:
            fail_queue = gates.fail_queue(step, job.queue)
            if fail_queue is not None:
                told = failure_job(job, fail_queue, step.now)
                self._records.add(new_record(told, step.take_seqs(1), step.now))
        step.run("idempotency_ended", id=job.id, expires_at=micros(step.now + IDEMPOTENCY_WINDOW))
        if gates.retention(step, job.queue).of(job.state) == NO_TIME:
            self._records.drop(job)

    def drop_copy_of(self, job: JobRecord) -> None:
        copy = self._records.live_copy_of(job)
        if copy is not None:
            self._records.put(copy, dropped(copy, self._step.now))
            if copy.worker_id is not None:
                self._step.hints.cancels.append((copy.worker_id, copy.id))

    def _win(self, original_id: str, result: bytes | None) -> None:
        """The copy was faster: its original is completed, whatever it is doing."""
        original = self._records.by_id(original_id)
        if original is None or original.state.is_terminal:
            return
        after = won(original, result, self._step.now)
        self._records.put(original, after)
        if original.worker_id is not None:
            self._step.hints.cancels.append((original.worker_id, original.id))
        self.end(after)
