"""Changing jobs by hand: cancel, requeue, delete, speculate. One record after the other, under lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from taskharbor.drivers import families, family_verbs, lifecycle
from taskharbor.drivers.messages import CancelAnswer, Deleted, Requeued, Speculated
from taskharbor.drivers.postgres.families import Families
from taskharbor.drivers.postgres.family_step import FamilyStep
from taskharbor.drivers.postgres.unit_of_work import HasFamily, UnitOfWork
from taskharbor.errors import ConflictError, JobNotFound
from taskharbor.model.edit import Edit
from taskharbor.model.speculation import HeadStart
from taskharbor.model.transitions import starting_at

_T = TypeVar("_T")


class Control(Families):
    """The control verbs of a driver handle."""

    async def do_cancel(self, ids: Sequence[str], now: datetime | None) -> list[CancelAnswer]:
        def cancel_families(jobs: FamilyStep) -> list[CancelAnswer]:
            return families.concluded(jobs, [family_verbs.cancel(jobs, job_id) for job_id in ids])

        answers = await self._step(
            ids, now, lambda jobs: [lifecycle.cancel(jobs, job_id) for job_id in ids], cancel_families
        )
        return self._with_ends(answers)

    async def do_cancel_waiting(self, queue: str, key: bytes, now: datetime | None) -> bool:
        async def step(connection: Any) -> bool:
            jobs = UnitOfWork(connection, self._sql)
            await jobs.lock((), now, (queue, key))
            is_cancelled = lifecycle.cancel_waiting(jobs, queue, key)
            await jobs.write()
            return is_cancelled

        return await self._connections.step(step)

    async def do_requeue(
        self,
        ids: Sequence[str],
        edit: Edit,
        reset_counts: bool,
        run_at: datetime | None,
        delay: timedelta | None,
        now: datetime | None,
    ) -> list[Requeued | JobNotFound | ConflictError]:
        def requeue(jobs: UnitOfWork) -> list[Requeued | JobNotFound | ConflictError]:
            due = starting_at(run_at, delay, jobs.now)
            return [
                lifecycle.requeue(jobs, job_id, edit, reset_counts=reset_counts, run_at=due) for job_id in ids
            ]

        def requeue_families(jobs: FamilyStep) -> list[Requeued | JobNotFound | ConflictError]:
            due = starting_at(run_at, delay, jobs.now)
            return [
                family_verbs.requeue(jobs, job_id, edit, reset_counts=reset_counts, run_at=due)
                for job_id in ids
            ]

        return self._with_ends(await self._step(ids, now, requeue, requeue_families))

    async def do_delete(
        self, ids: Sequence[str], now: datetime | None
    ) -> list[Deleted | JobNotFound | ConflictError]:
        return await self._step(
            ids,
            now,
            lambda jobs: [lifecycle.delete(jobs, job_id) for job_id in ids],
            lambda jobs: [family_verbs.delete(jobs, job_id) for job_id in ids],
        )

    async def do_speculate(
        self, job_id: str, head_start: HeadStart | None, now: datetime | None
    ) -> Speculated | JobNotFound | ConflictError:
        # Its seq is drawn before it is known whether there will be a copy.
        return await self._step(
            [job_id],
            now,
            lambda jobs: lifecycle.speculate(jobs, job_id, head_start),
            lambda jobs: family_verbs.speculate(jobs, job_id, head_start),
            seqs=1,
        )

    async def _step(
        self,
        ids: Sequence[str],
        now: datetime | None,
        change: Callable[[UnitOfWork], _T],
        change_families: Callable[[FamilyStep], _T],
        *,
        seqs: int = 0,
    ) -> _T:
        """`change`, or the other one where a job of a family takes part."""

        async def step(connection: Any) -> _T:
            jobs = UnitOfWork(connection, self._sql)
            await jobs.lock(ids, now, seqs=seqs)
            answer = change(jobs)
            await jobs.write()
            return answer

        try:
            return await self._connections.step(step)
        except HasFamily:
            return await self._family_step(ids, now, change_families, seqs=seqs)
