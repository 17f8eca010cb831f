"""Changing jobs by hand: cancel, requeue, delete, speculate. One record after the other, under lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from taskharbor.drivers.messages import CancelAnswer, CancelResult, Deleted, Requeued, Speculated
from taskharbor.drivers.postgres.attempts import drop_copy_of, end
from taskharbor.drivers.postgres.connections import Connections
from taskharbor.drivers.postgres.ledger import Ledger
from taskharbor.drivers.postgres.rows import shown
from taskharbor.drivers.postgres.statements import Statements
from taskharbor.errors import ConflictError, DuplicateJob, JobNotFound, NotAllowedInState
from taskharbor.model.edit import Edit
from taskharbor.model.job import JobRecord
from taskharbor.model.speculation import HeadStart
from taskharbor.model.state import JobState
from taskharbor.model.transitions import cancelled, requeued, speculative_copy, starting_at

_T = TypeVar("_T")


class Control:
    """The control verbs of one driver handle."""

    def __init__(self, connections: Connections, statements: Statements) -> None:
        self._connections = connections
        self._sql = statements

    async def cancel(self, ids: Sequence[str], now: datetime | None) -> list[CancelAnswer]:
        await self._set_apart(ids)
        return await self._each(ids, now, _cancel)

    async def cancel_waiting(self, queue: str, key: bytes, now: datetime | None) -> bool:
        async def step(connection: Any) -> bool:
            # The key first: then nobody can put another job in the place of the one that is found.
            await connection.execute(self._sql["lock"], "key", queue, key)
            found = await connection.fetch(self._sql["waiting_of_key"], queue, key)
            if not found:
                return False
            ledger = Ledger(connection, self._sql)
            await ledger.lock([found[0][0]], now)
            job = ledger.find(found[0][0])
            # It may have been handed out while we waited for its row: then nothing waits any more.
            if job is None or not job.state.is_waiting:
                return False
            _cancel(ledger, job.id)
            await ledger.write()
            return True

        return await self._connections.step(step)

    async def requeue(
        self,
        ids: Sequence[str],
        edit: Edit,
        reset_counts: bool,
        run_at: datetime | None,
        delay: timedelta | None,
        now: datetime | None,
    ) -> list[Requeued | JobNotFound | ConflictError]:
        async def step(connection: Any) -> list[Requeued | JobNotFound | ConflictError]:
            ledger = Ledger(connection, self._sql)
            await ledger.lock(ids, now)
            due = starting_at(run_at, delay, ledger.at)
            answers = []
            for job_id in ids:
                answer = _requeue(ledger, job_id, edit, reset_counts, due)
                if isinstance(answer, Requeued):
                    await ledger.lives_again(answer.id)
                answers.append(answer)
            await ledger.write()
            return answers

        return await self._connections.step(step)

    async def delete(
        self, ids: Sequence[str], now: datetime | None
    ) -> list[Deleted | JobNotFound | ConflictError]:
        return await self._each(ids, now, _delete)

    async def speculate(
        self, job_id: str, head_start: HeadStart | None, now: datetime | None
    ) -> Speculated | JobNotFound | ConflictError:
        async def step(connection: Any) -> Speculated | JobNotFound | ConflictError:
            ledger = Ledger(connection, self._sql)
            await ledger.lock([job_id], now)
            # Drawn before it is known whether there will be a copy: its id depends on it.
            seq = await connection.fetchval(self._sql["next_seq"])
            answer = _speculate(ledger, job_id, seq, head_start)
            await ledger.write()
            return answer

        await self._set_apart([job_id])
        return await self._connections.step(step)

    async def _set_apart(self, ids: Sequence[str]) -> None:
        """Running jobs get places of their own, in a step of its own.

        A caller who is slow, or stands still in the middle of the next one, must not keep heartbeats of the
        jobs that were claimed together with them waiting.
        """
        await self._connections.rows(self._sql["unpack"], list(ids), None)

    async def _each(
        self, ids: Sequence[str], now: datetime | None, change: Callable[[Ledger, str], _T]
    ) -> list[_T]:
        async def step(connection: Any) -> list[_T]:
            ledger = Ledger(connection, self._sql)
            await ledger.lock(ids, now)
            answers = [change(ledger, job_id) for job_id in ids]
            await ledger.write()
            return answers

        return await self._connections.step(step)


def _cancel(ledger: Ledger, job_id: str) -> CancelAnswer:
    at = ledger.at
    job = ledger.find(job_id)
    if job is None:
        return CancelAnswer(job_id, CancelResult.NOT_FOUND, None, at, 0)
    if job.state.is_terminal:
        return CancelAnswer(job.id, CancelResult.ALREADY_OVER, job.state, at, job.version)
    is_running = job.state is JobState.RUNNING
    result = CancelResult.REQUESTED if is_running else CancelResult.CANCELLED
    if job.cancel_requested:
        return CancelAnswer(job.id, result, job.state, at, job.version)
    after = cancelled(job, at)
    ledger.put(after)
    drop_copy_of(ledger, after.id)
    if is_running:
        ledger.tell_of_cancel(job.id, job.worker_id)
    else:
        end(ledger, after)
    return CancelAnswer(after.id, result, after.state, at, after.version)


def _requeue(
    ledger: Ledger, job_id: str, edit: Edit, reset_counts: bool, run_at: datetime | None
) -> Requeued | JobNotFound | ConflictError:
    job = ledger.find(job_id)
    if job is None or job.speculates_on is not None:
        return JobNotFound(job_id)
    if not job.state.is_terminal:
        return NotAllowedInState(job.id, verb="requeue", state=shown(job, ledger.at).state)
    there = ledger.of_key(job, JobState.READY, JobState.SCHEDULED, JobState.BLOCKED)
    if there is not None:
        return DuplicateJob(job.id, there.id)
    is_held_up = ledger.of_key(job, JobState.RUNNING) is not None
    after = requeued(job, edit, run_at, ledger.at, reset_counts=reset_counts, blocked=is_held_up)
    ledger.put(after)
    return Requeued(after.id, after.state, ledger.at, after.version)


def _delete(ledger: Ledger, job_id: str) -> Deleted | JobNotFound | ConflictError:
    job = ledger.find(job_id)
    if job is None or job.speculates_on is not None:
        return JobNotFound(job_id)
    if not job.state.is_terminal:
        return NotAllowedInState(job.id, verb="delete", state=shown(job, ledger.at).state)
    ledger.drop(job)
    return Deleted(job.id, ledger.at)


def _speculate(
    ledger: Ledger, job_id: str, seq: int, head_start: HeadStart | None
) -> Speculated | JobNotFound | ConflictError:
    job = ledger.find(job_id)
    if job is None:
        return JobNotFound(job_id)
    if not _may_have_copy(ledger, job):
        return NotAllowedInState(job_id, verb="speculate", state=job.state)
    copy = speculative_copy(job, seq, ledger.at, head_start)
    ledger.put(job)  # unchanged, but tied to its copy from now on
    ledger.note_copy_of(job)
    ledger.put(copy)
    return Speculated(job.id, copy.id, ledger.at, copy.version)


def _may_have_copy(ledger: Ledger, job: JobRecord) -> bool:
    return (
        job.state is JobState.RUNNING
        and job.lease_expires_at is not None
        and job.lease_expires_at > ledger.at
        and not job.cancel_requested
        and job.key is None
        and job.speculates_on is None
        and ledger.copy_of(job.id) is None
        and not ledger.run_had_copy(job)
    )
